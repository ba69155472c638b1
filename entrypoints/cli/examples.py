"""Command lines for the end of each command's help."""

from __future__ import annotations

from collections.abc import Mapping

EXAMPLES: Mapping[str, tuple[str, ...]] = {
    "run": (
        'ostro run -i "What is 27 + 15?"',
        "ostro run smollm2 --temperature 0.7",
        "ostro run ./model-Q4_K_M.gguf --context 8192",
        'ostro run Qwen/Qwen2.5-VL-3B-Instruct "What is this?" cat.png',
    ),
    "serve": (
        "ostro serve smollm2 --port 8000",
        "ostro serve chat=Qwen/Qwen3-0.6B embed=minilm",
        "ostro serve ./model --host 0.0.0.0 --api-key-file keys.txt",
        "ostro serve --config server.toml",
        "ostro serve smollm2 --quant q4k --print-config > server.toml",
    ),
    "from-config": (
        "ostro from-config server.toml",
        "ostro from-config server.toml --port 8000",
        "ostro from-config server.toml --print-config",
    ),
    "launch": (
        "ostro launch",
        "ostro launch codex",
        "ostro launch continue --print",
        'ostro launch opencode --model smollm2 -- run "Explain this folder."',
    ),
    "keys": (
        "ostro keys new alice --keys keys.toml",
        "ostro keys new bob",
        "ostro keys check keys.toml",
    ),
    "embed": (
        'ostro embed minilm "A cat sits on the mat."',
        "ostro embed minilm --file texts.txt -o vectors.npy",
        'ostro embed -m ./encoder --dimensions 256 "first text" "second text"',
    ),
    "rerank": (
        'ostro rerank ./reranker "What do cats eat?" "Cats eat fish." "Snow is cold."',
        'ostro rerank ./reranker "What do cats eat?" --file documents.txt --top 3',
        'ostro rerank -m org/reranker "What do cats eat?" --file -',
    ),
    "transcribe": (
        "ostro transcribe whisper talk.mp3",
        "ostro transcribe whisper talk.mp3 -o talk.srt --language de",
        "ostro transcribe -m openai/whisper-small a.wav b.wav --translate",
    ),
    "draw": (
        'ostro draw black-forest-labs/FLUX.1-schnell "a ship at sea" -o ship.png',
        'ostro draw ./flux "a ship at sea" -o ship.png --size 768x512 --seed 1',
        'ostro draw ./flux "at night" -o night.png --image ship.png --strength 0.6',
    ),
    "speak": (
        'ostro speak ./dia "[S1] Good morning." -o morning.wav',
        'ostro speak ./dia "[S1] Good morning." -o morning.mp3 --seed 1',
        "ostro speak ./dia - -o text.wav --max-seconds 20",
    ),
    "bench": (
        "ostro bench ./model-Q4_K_M.gguf",
        "ostro bench Qwen/Qwen3-0.6B --quant q4k -p 512 -n 128 --concurrency 1,4",
        "ostro bench --url http://127.0.0.1:1234 -m default --concurrency 8",
    ),
    "quality": (
        "ostro quality Qwen/Qwen3-0.6B --quant q8_0,q4k",
        "ostro quality ./model --quant all --plot quality.svg",
        "ostro quality ./model-Q4_K_M.gguf --reference ./model --json quality.json",
    ),
    "quantize": (
        "ostro quantize ./model --quant q4k --to gguf -o ./quantized",
        "ostro quantize Qwen/Qwen3-0.6B --quant 4.5bpw --to gguf -o ./quantized",
        "ostro quantize ./model --quant afq4,afq8 --to uqff -o ./quantized",
    ),
    "merge": (
        "ostro merge ./model --adapter ./style -o ./merged",
        "ostro merge ./model --adapter ./style=0.5 --adapter ./facts -o ./merged",
        "ostro merge Qwen/Qwen3-0.6B --adapter org/style-lora -o ./merged",
    ),
    "adapters": (
        "ostro adapters check ./style",
        "ostro adapters check ./style ./facts --json",
        "ostro adapters check ./style -m Qwen/Qwen3-0.6B",
    ),
    "fit": (
        "ostro fit ./model",
        "ostro fit Qwen/Qwen3-0.6B --context 32768",
        "ostro fit ./model --memory 6GB --json",
    ),
    "tune": (
        "ostro tune smollm2 --write server.toml",
        "ostro tune ./model --formats stored,q8_0,q4k --seconds 300",
        "ostro tune ./model-Q4_K_M.gguf --formats stored --streams 1,8,32",
    ),
    "pull": (
        "ostro pull smollm2",
        "ostro pull Qwen/Qwen3-0.6B-GGUF:Q8_0",
        "ostro pull --adapter org/style-lora",
    ),
    "list": (
        "ostro list",
        "ostro list --aliases",
        "ostro list --json",
    ),
    "show": (
        "ostro show smollm2",
        "ostro show ./model-Q4_K_M.gguf",
        "ostro show Qwen/Qwen3-0.6B --json",
    ),
    "rm": (
        "ostro rm smollm2",
        "ostro rm Qwen/Qwen3-0.6B@main",
        "ostro rm org/one org/two --yes",
    ),
    "inspect": (
        "ostro inspect ./model",
        "ostro inspect Qwen/Qwen3-0.6B --offline",
        "ostro inspect ./model-Q4_K_M.gguf --json",
    ),
    "store": (
        "ostro store ls ./state",
        "ostro store ls ./state --owner team-a --json",
        "ostro store purge ./state --older-than 7d --yes",
    ),
    "models": (
        "ostro models",
        "ostro models qwen3",
        "ostro models --explain ./model --quant q4k",
    ),
    "plugins": (
        "ostro plugins",
        "ostro plugins --hooks",
        "ostro plugins --plugin ./my_plugin --json",
    ),
    "completion": (
        "ostro completion bash",
        "ostro completion zsh > ~/.zfunc/_ostro",
        "ostro completion fish > ~/.config/fish/completions/ostro.fish",
    ),
    "doctor": (
        "ostro doctor",
        "ostro doctor --json",
        "ostro doctor --json > report.json",
    ),
}
