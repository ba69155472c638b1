"""The grids of ggml's IQ formats: codebooks of short vectors; a block stores indices into them.

A vector of d small codes, each below `base`, is a number of d digits in base `base`, lowest digit
first. A grid is an ascending list of such numbers. It is stored as a bitmap of base ** d bits: bit
i (bit i % 8 of byte i // 8) is set if i is in the grid. The strings are these bitmaps, deflated
(zlib) and in base 85. Source of the numbers: iq2xxs_grid and others in llama.cpp's ggml-common.h.
"""

from __future__ import annotations

import zlib
from base64 import b85decode
from functools import cache
from typing import NamedTuple

import torch
from torch import Tensor


class Grid(NamedTuple):
    """Vectors of `digits` codes; a code is an index into `values`, the magnitudes of weights."""

    values: tuple[int, ...]
    digits: int
    bitmap: str


@cache
def vectors(name: str) -> Tensor:
    """The vectors of a grid as codes, uint8 [vectors, digits]. Cached: do not modify it."""
    grid = GRIDS[name]
    packed = torch.frombuffer(bytearray(zlib.decompress(b85decode(grid.bitmap))), dtype=torch.uint8)
    bits = packed[:, None] >> torch.arange(8, dtype=torch.uint8) & 1
    places = len(grid.values) ** torch.arange(grid.digits)
    return (bits.flatten().nonzero() // places % len(grid.values)).to(torch.uint8)


GRIDS = {
    "IQ2_XXS": Grid(
        values=(8, 25, 43),
        digits=8,
        bitmap=(
            "c-nPRORB^$43oj#tB`je2YP^R=KfcCw)5@K5e=lV<VbEmf91ogR%p3E0BR^O#16P=^@J3)+t0mx___f>P^zD"
            "olEn6;is&dxI!#Zg_{KuzkVd4Mw`?l*l~*(z5~c8Qj-!-YZym34v`$TQ4<4*~)dpL;rq|+W4irx`d$&)6^vG"
            "b7UkLBrzcFbHqcf>sMFwRxr;MTG;*}m%Qlby-@@TSk)X7om@@#uKQIjUUWQ&$2&y}*gX5TV=Bc|Cuh1wL(2K"
            "n3A3Yj<N%;gblzhT7_jxp@MF=lA5st5R^Hl2J=^JV`E{Z0D^#$6R7"
        ),
    ),
    "IQ2_XS": Grid(
        values=(8, 25, 43),
        digits=8,
        bitmap=(
            "c-mc2TdsvL2pkgnkBRPwCicH3cK=&BJX-bM<{ZTW!^|+oxJIi-qkD|rsuaR~iB<*?x~C4>8J0pJW<V>X*vo#"
            "SY&(-c)w(<-fCU6QVt|)*=>oJ=N8h~B3mmYKBw*Y)Ca<s*uvOak7T*la5<g=kAh?T96(5+bR(Mt@J=L5^n!u"
            "1sF+~=p=RjVCGbM+vDH*59tF!>kC`)-u3GzO}jM8X_r-*1ytubG*&a^iqGs?p-do}D8x2NWXU?%O)=7t88q0"
            "40RdJ=Ak)9T+$YBcFD31^6BC_W+mG1}iEA-T}Oj@u6-pQ1yByIl9%`W3mW#F%j~<yh(N0zSL~oH^Zy%}}tQx"
            "4=M73#xoc?jNErTmD?iDs40;(&MG>YYMNuDE=SK;cc#9vM%q_=>7msuqjC"
        ),
    ),
    "IQ2_S": Grid(
        values=(8, 25, 43),
        digits=8,
        bitmap=(
            "c-n1JU5W-F3~NE(E9iYHjPDBe{#V(wI=kPpE5rQ7#3X8F%Z9aF@G^(h-0EI3Em0|W3^QwctZ7zp0a8G#rYWS"
            "&oF&YfEj@sgh^u5FBBgC>LAkBEEtarKv-X}c)kMD5E9g)N*35uFS6j&;COQ!QC2=T0oAzp}=fs8f?3xctXeG"
            "?g^dQAA!2(KVP=j1x!<Qgx@l7F)Pu!TMd$m>{ZzEray(N$AzRb24)#*U9zYZZF^+2!@EVQ9?ARiEH!J<ErE8"
            "usn4?()-BQhW*1pE<<S|Z6aT82aQO}QP4+el6zUY~*z7~Sl6pK?p!Q_DMIhH4w7?joIO9P^#Dw9CRS7mu8OB"
            "C|vDii4FoWN_zK9m?6y$}qXC*pyH_2f!)+bXep&HXz~CYasM7Fd3(JhmM~KIbkHJ7yU4;E692~{FNElHOf~F"
            "zm+TBn!W(JyjC6"
        ),
    ),
    "IQ3_XXS": Grid(
        values=(4, 12, 20, 28, 36, 44, 52, 62),
        digits=4,
        bitmap=(
            "c-l=-F%H5o3_M%0RAmZ7_lgPeigaLyA4Q!IuVCbv_?)J2Rn;aw-<^~BWtxCXwzFx0%xW)eST<YW5KL&L;j#h"
            "AAHoX-c)&}FY<X@1m|7IGsjrX>q7@bAuHrcP3L2_`6x)_>^v5;&o?@Fdagv_Uo9H*utGOGEJ93R6P|L2rgx{"
            "U}Y-UnrS3sKYtPIbF!WdDS7|dsT<9UQCqzhJe8+4kK5km%XvHjm=J(sMgqk-e3v^zjTJayVggoDWMJzTWE4a"
            "0T)3l-9P!ydlNePrBA?Xny*@kmBo4W|8$?wEo20v5Uy_5"
        ),
    ),
    "IQ3_S": Grid(
        values=(1, 3, 5, 7, 9, 11, 13, 15),
        digits=4,
        bitmap=(
            "c-k#d!AiqG5PdVu!e&pqA>uXNMyUCUt<-~hDT4SrX{pfmmf{D9Rs{Q#&TgE;z`Qr}-rMBob#A|%IbF{W(Id*"
            "&Lkwq!%0~0(%@Ao{OU0lD_x2OXCI^OquXIKLt}o^pYnG?L6&oz+9HeSVPSrN(A}t!YmF^Xmp*3Qy-5G8(e|b"
            "5Y-VC?q(AA>+32wuC)HmEXp@c1}PT|h83}iuXSwt^ePGkv?U+Lf3a_=1ov?9@{igP&9v4ypFswx3&TJZ@M2_"
            "=SuX>*z&qp%+CoXl)ge8!drA@5Agyn!FG+()?*sDei}n1QT95(J|p-wR7#Aht{0!Hx!aZfy;cl!bD4D3uqR("
            "zW`GY5;6>@R{_|3X$jRqNR^eu)^e<Ll^vCYlKPU1;QQ+o$IB(hKom+bHx0SXmXXwyZnVo8~6jd#wQ>"
        ),
    ),
    "IQ1": Grid(
        values=(-1, 0, 1),
        digits=8,
        bitmap=(
            "c-k#eK}(!R7=CxE;dM-9V?RN1diSfb(^(PgE$L;EU0C#DLh=VZ*|bQ>IZZw%yXlwN6ha`hG?#HO$v6$G@ldv"
            "(umMk2dT8mb2WdTox*h^v8VtnDuD#8?@Vw9Syw7v(LR2?w<}y}3b9YJG^C&5*&qs>Nl?x;NhAB!%0hRecnsm"
            "$a2YwJ@;QqccSPG~@n#@N5uBY$^gNY22s7}?HYgoxmY#Y+!Ajh1yxWA4l1OzVO1-XRyWBes^wA;LAoBq<x!%"
            "nuPhFWp9`{&R@7DG%<XIwD^Is3Q$Jf@<B<<hd(0^?jzIHG8vQn*?-$Ub(LsHW&@kYNcQ%|}dP%c;av8KJU^m"
            "WiJv*28-WD<$YEG%#}+D!ES;XeDuFD(VlG#i@A4$V;H%7rH52w&LB_pg1xSvl=L<CZ@9?{WdkSxbxSuMq|l6"
            "4F4MqT|O(RS}O@H(bLXvHn!_OntvSw2GXTKiD_6XGLxujp0!)qyF+V=7Bv?g3oFy??D1-6?{(2le%HQrc>Le"
            "(m#@Cb_P%)g$;r#{<KcsUbe#9?p_<1{H>jE?+1SCIq;Fwj@yPMjA_U90?}vdY$)D1%>fQq-z{36HBT$I&mG*"
            "v%J#A~V%aSj@pZtCEAg}V1eou`2@uUxU_YQ=)6;l3U7EjmAKr#y2F0kdO91c}@u6ikZ68>90+)KINV7E3oVy"
            "0wcNC7Qg*Gnz$6Ckekcj5w;yQl$8BcV}uIeIA*;9XR~L2uzcrHYS+2)y-rqrtcg6e{stpn$cM#il(dTBx(R&"
            "0u-;P1DmAvG}u@dX;b%ns9v~6p49X^c}lqEMlIFjzJBbrp$X4T{{D_p5YV7e^~xM<^E7<_56qcAaL=FI+lT|"
            "4v2#Y&dpW2-Egd@Fdf5G@Dheeu*|v(bMFD;1sQ1"
        ),
    ),
}
"""Grids by format; IQ1_S and IQ1_M share IQ1."""
