// Replays the kernel calls of a CPU graph: Python's lock is released once for all of them.
#include <cstdint>

struct Call {
    void (*run)(const int64_t* words);
    const int64_t* words;
};

extern "C" void replay(const Call* calls, int64_t count) {
    for (int64_t i = 0; i < count; i++) calls[i].run(calls[i].words);
}
