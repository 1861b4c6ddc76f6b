// Who computes? A team of threads that runs one function together, and shares its loops piece by piece.
//
// `run(body)` has every member call `body` (single program, multiple data); inside, `each(items, f)` hands out
// the items one at a time to whoever is free, and returns when all are done. A member that waits spins for a few
// microseconds, because the next loop comes at once, and then sleeps, because on a machine that does other things too
// the spinner may hold the very core that the last one needs.
#pragma once

#include <atomic>
#include <functional>

#include "registers.h"

namespace hb {

class Team {
public:
    static Team& get();

    // How many threads there shall be, the caller included, and where (null: wherever the system likes). Not while a
    // `run` is under way.
    void resize(int threads, const int* cpus);
    int size() const;

    // One caller at a time; a second one waits. Not from inside `body`, and not in a process that was forked off: the
    // threads stay behind.
    void run(const std::function<void()>& body);

    // Inside `run`, by every member alike. `f(item)` is called once for each item in [0, items).
    template <class F>
    void each(int items, F&& f) {
        std::atomic<int>& next = claim();
        for (int item = next.fetch_add(1, std::memory_order_relaxed); item < items;
             item = next.fetch_add(1, std::memory_order_relaxed))
            f(item);
        arrive();
    }

    // The same for many small items: in runs, since claiming one costs about as much as normalising a token, and short
    // enough to share.
    template <class F>
    void each_of_many(int items, F&& f) {
        const int some = items / (size() * 8), run = some > 1 ? some : 1;
        each((items + run - 1) / run, [&](int i) {
            const int end = (i + 1) * run < items ? (i + 1) * run : items;
            for (int item = i * run; item < end; ++item) f(item);
        });
    }

    // A number for this member, from 0.
    static int member();

private:
    struct Impl;
    Team();
    std::atomic<int>& claim();
    void arrive();
    void work(int number, unsigned seen);
    Impl* impl_;
};

// A loop of its own, for callers that are not inside `run`.
template <class F>
void pool_each(int items, F&& body) {
    Team& team = Team::get();
    if (items <= 1 || team.size() == 1) {
        forget_registers();
        for (int item = 0; item < items; ++item) body(item);
        return;
    }
    team.run([&] { team.each(items, body); });
}

}  // namespace hb
