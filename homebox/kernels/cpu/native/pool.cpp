// The team behind pool.h: threads that wait for work, a counter to claim items from, a barrier.
#include "pool.h"

#include <condition_variable>
#include <mutex>
#include <thread>
#include <vector>

#if defined(__linux__)
#include <pthread.h>
#include <sched.h>
#endif
#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace hb {
namespace {

constexpr int SPINS = 4000;  // about 50 us with a pause in each

thread_local int member_ = 0;
thread_local unsigned phase_ = 0;

void breathe() {
#if defined(__x86_64__)
    _mm_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
}

// Wait until `value` is no longer `seen`: spin, then sleep.
class Gate {
public:
    unsigned value() const { return value_.load(std::memory_order_acquire); }
    void wait_past(unsigned seen) {
        for (int i = 0; i < SPINS; ++i) {
            if (value() != seen) return;
            breathe();
        }
        std::unique_lock<std::mutex> lock(mutex_);
        sleepers_.fetch_add(1, std::memory_order_seq_cst);
        moved_.wait(lock, [&] { return value_.load(std::memory_order_seq_cst) != seen; });
        sleepers_.fetch_sub(1, std::memory_order_relaxed);
    }
    void open() {
        value_.fetch_add(1, std::memory_order_seq_cst);
        if (sleepers_.load(std::memory_order_seq_cst) > 0) {
            { std::lock_guard<std::mutex> lock(mutex_); }
            moved_.notify_all();
        }
    }

private:
    std::atomic<unsigned> value_{0};
    std::atomic<int> sleepers_{0};
    std::mutex mutex_;
    std::condition_variable moved_;
};

void pin([[maybe_unused]] std::thread& thread, [[maybe_unused]] int cpu) {
#if defined(__linux__)
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(cpu, &set);
    pthread_setaffinity_np(thread.native_handle(), sizeof set, &set);
#endif
}

}  // namespace

struct alignas(64) Counter {
    std::atomic<int> next{0};
};

struct Team::Impl {
    int threads = 1;
    std::vector<std::thread> others;
    std::mutex one_run;
    const std::function<void()>* body = nullptr;
    bool ending = false;  // written before `start` opens, read after
    Gate start, phase;
    std::atomic<int> arrived{0};
    // Three, so that the one before the last can be set back while the next is in use.
    Counter counters[3];
};

Team::Team() : impl_(new Impl) {}

Team& Team::get() {
    static Team* team = new Team;  // never destroyed: its threads live as long as the process
    return *team;
}

int Team::member() { return member_; }

int Team::size() const { return impl_->threads; }

void Team::work(int number, unsigned seen) {
    member_ = number;
    for (;; ++seen) {
        impl_->start.wait_past(seen);
        if (impl_->ending) return;
        phase_ = 0;
        (*impl_->body)();
        arrive();
    }
}

void Team::resize(int threads, const int* cpus) {
    std::lock_guard<std::mutex> alone(impl_->one_run);
    impl_->ending = true;
    impl_->start.open();
    for (auto& other : impl_->others) other.join();
    impl_->others.clear();
    impl_->ending = false;
    impl_->threads = threads < 1 ? 1 : threads;
    const unsigned seen = impl_->start.value();
    for (int number = 1; number < impl_->threads; ++number) {
        impl_->others.emplace_back([this, number, seen] { work(number, seen); });
        if (cpus != nullptr) pin(impl_->others.back(), cpus[number]);
    }
}

void Team::run(const std::function<void()>& body) {
    std::lock_guard<std::mutex> alone(impl_->one_run);
    forget_registers();
    member_ = 0;
    phase_ = 0;
    for (auto& counter : impl_->counters) counter.next.store(0, std::memory_order_relaxed);
    impl_->body = &body;
    impl_->start.open();
    body();
    arrive();  // everybody has left `body` before the next one may begin
}

std::atomic<int>& Team::claim() { return impl_->counters[phase_ % 3].next; }

void Team::arrive() {
    Impl& team = *impl_;
    const unsigned seen = team.phase.value();
    const unsigned mine = phase_++;
    if (team.arrived.fetch_add(1, std::memory_order_acq_rel) + 1 == team.threads) {
        team.arrived.store(0, std::memory_order_relaxed);
        team.counters[(mine + 2) % 3].next.store(0, std::memory_order_relaxed);
        team.phase.open();
    } else {
        team.phase.wait_past(seen);
    }
}

}  // namespace hb

extern "C" __attribute__((visibility("default"))) void hb_threads(int threads, const int* cpus) {
    hb::Team::get().resize(threads, cpus);
}
