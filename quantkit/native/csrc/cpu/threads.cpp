#include "threads.h"

#include <unistd.h>

#include <atomic>
#include <condition_variable>
#include <mutex>
#include <system_error>
#include <thread>

namespace qk {
namespace {

struct Job {
    const std::function<void(int64_t)>* task = nullptr;
    int64_t n_tasks = 0;
    std::atomic<int64_t> next{0};

    void work() {
        for (int64_t i = next++; i < n_tasks; i = next++) (*task)(i);
    }
};

class Pool {
public:
    bool try_run(int64_t n_tasks, int n_threads, const std::function<void(int64_t)>& task) {
        std::unique_lock<std::mutex> turn(callers_, std::try_to_lock);
        if (!turn.owns_lock()) return false;
        n_threads = 1 + have_workers(n_threads - 1);
        {
            std::lock_guard<std::mutex> hold(state_);
            job_.task = &task;
            job_.n_tasks = n_tasks;
            job_.next = 0;
            wanted_ = n_threads - 1;
            running_ = wanted_;
            ++generation_;
        }
        start_.notify_all();
        job_.work();
        std::unique_lock<std::mutex> hold(state_);
        done_.wait(hold, [this] { return running_ == 0; });
        return true;
    }

private:
    // How many of the wanted workers there are; the system may refuse to start more.
    int have_workers(int wanted) {
        try {
            while (n_workers_ < wanted) add_worker();
        } catch (const std::system_error&) {
            return n_workers_;
        }
        return wanted;
    }

    void add_worker() {
        const int index = n_workers_;
        std::thread worker([this, index, seen = generation_] { serve(index, seen); });
        worker.detach();
        ++n_workers_;
    }

    // Workers live as long as the process; the pool is never destroyed.
    void serve(int index, uint64_t seen) {
        std::unique_lock<std::mutex> hold(state_);
        for (;;) {
            start_.wait(hold, [&] { return generation_ != seen; });
            seen = generation_;
            if (index >= wanted_) continue;
            hold.unlock();
            job_.work();
            hold.lock();
            if (--running_ == 0) done_.notify_one();
        }
    }

    std::mutex callers_;
    std::mutex state_;
    std::condition_variable start_;
    std::condition_variable done_;
    int n_workers_ = 0;
    Job job_;
    int wanted_ = 0;
    int running_ = 0;
    uint64_t generation_ = 0;
};

// A forked child inherits the pool's memory but none of its threads: it leaves the old pool alone
// and makes another.
Pool& pool() {
    static std::mutex guard;
    static Pool* current = nullptr;
    static pid_t owner = 0;
    std::lock_guard<std::mutex> hold(guard);
    if (current == nullptr || owner != getpid()) {
        current = new Pool;
        owner = getpid();
    }
    return *current;
}

}  // namespace

void run_tasks(int64_t n_tasks, int n_threads, const std::function<void(int64_t)>& task) {
    if (int64_t(n_threads) > n_tasks) n_threads = int(n_tasks);
    if (n_threads > 1 && pool().try_run(n_tasks, n_threads, task)) return;
    for (int64_t i = 0; i < n_tasks; ++i) task(i);
}

}  // namespace qk
