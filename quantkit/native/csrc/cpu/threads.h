// One pool of worker threads for the process.
#pragma once

#include <cstdint>
#include <functional>

namespace qk {

// Calls task(i) once for every i in [0, n_tasks) on up to n_threads threads, the caller's among
// them, and returns when all are done. A second caller while the pool is busy does all its tasks
// itself. After a fork the child starts a pool of its own.
void run_tasks(int64_t n_tasks, int n_threads, const std::function<void(int64_t)>& task);

}  // namespace qk
