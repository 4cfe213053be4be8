#include "table/team.h"

#include <dlfcn.h>
#include <pthread.h>

#include <thread>
#include <vector>

namespace monolith {
namespace {

// The functions of the OpenMP library that torch uses. A process may contain several OpenMP
// libraries, each with its own threads, so the functions are resolved like the calls of torch:
// starting from the torch library.
struct OpenMp {
  void (*parallel)(void (*work)(void*), void* data, unsigned num_threads, unsigned flags);
  int (*max_threads)();
  int (*num_threads)();
  int (*thread_num)();

  template <typename Function>
  static bool find(void* library, const char* name, Function& function) noexcept {
    function = reinterpret_cast<Function>(dlsym(library, name));
    return function != nullptr;
  }
  static OpenMp of_torch() noexcept {
    OpenMp openmp{};
    void* torch = dlopen("libtorch_cpu.so", RTLD_LAZY | RTLD_NOLOAD);
    if (torch == nullptr) return openmp;
    const bool is_complete = find(torch, "omp_get_max_threads", openmp.max_threads) &&
                             find(torch, "omp_get_num_threads", openmp.num_threads) &&
                             find(torch, "omp_get_thread_num", openmp.thread_num) &&
                             find(torch, "GOMP_parallel", openmp.parallel);
    dlclose(torch);  // torch keeps the library loaded
    return is_complete ? openmp : OpenMp{};
  }
};

// Whether the threads of the OpenMP pool may belong to a parent process.
std::atomic<bool> is_unwatched{true};

const OpenMp& pool() noexcept {
  static const OpenMp openmp = OpenMp::of_torch();
  return openmp;
}

}  // namespace

void Team::watch_forks() noexcept {
  const auto note = [] { is_unwatched.store(true, std::memory_order_relaxed); };
  if (pthread_atfork(nullptr, nullptr, note) == 0) is_unwatched = false;
}

void Team::start(unsigned num_threads, void* body, Call call) {
  body_ = body;
  call_ = call;
  most_ = num_threads;
  if (num_threads == 1) {
    size_ = 1;
    return call(*this, 0);
  }
  const OpenMp& openmp = pool();
  if (openmp.parallel == nullptr || is_unwatched.load(std::memory_order_relaxed)) {
    return start_threads(num_threads);
  }
  // Requests all threads, because a pool ends threads when a call requests fewer than the call
  // before.
  const auto all = static_cast<unsigned>(std::max(1, openmp.max_threads()));
  openmp.parallel([](void* team) { static_cast<Team*>(team)->member_of_pool(); }, this,
                  std::max(all, num_threads), 0);
}

void Team::member_of_pool() noexcept {
  const OpenMp& openmp = pool();
  const auto member = static_cast<unsigned>(openmp.thread_num());
  // Each member stores the same value.
  size_.store(std::min(most_, static_cast<unsigned>(openmp.num_threads())),
              std::memory_order_relaxed);
  if (member < size()) call_(*this, member);
}

void Team::start_threads(unsigned num_threads) {
  std::vector<std::thread> helpers;
  try {
    helpers.reserve(num_threads - 1);
    for (unsigned member = 1; member < num_threads; ++member) {
      helpers.emplace_back([this, member] {
        size_.wait(0);
        call_(*this, member);
      });
    }
  } catch (const std::exception&) {
    // The system has no more threads, or no memory for them: continue with the threads that run.
  }
  size_.store(static_cast<unsigned>(helpers.size()) + 1);
  size_.notify_all();
  call_(*this, 0);
  for (std::thread& helper : helpers) helper.join();
}

}  // namespace monolith
