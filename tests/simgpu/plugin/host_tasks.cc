#include "host_tasks.h"

#include <algorithm>
#include <condition_variable>
#include <mutex>
#include <queue>
#include <utility>
#include <vector>

namespace simgpu {
namespace {

using Task = std::shared_ptr<HostTask>;

bool RunsBefore(const HostTask& one, const HostTask& other) {
  return std::make_pair(one.time, one.number) < std::make_pair(other.time, other.number);
}

struct RunsLater {
  bool operator()(const Task& one, const Task& other) const { return RunsBefore(*other, *one); }
};

class Runner {
 public:
  Runner() { std::thread([this] { Run(); }).detach(); }

  Task Add(Nanos time, std::function<void()> run) {
    std::lock_guard<std::mutex> guard(lock_);
    // Never before the present: `LastOf` relies on it that no task slips in before one that ran.
    auto task = std::make_shared<HostTask>(HostTask{std::max(time, Now()), next_number_++});
    task->run = std::move(run);
    tasks_.push(task);
    added_.notify_one();
    return task;
  }

  bool IsDone(const HostTask& task) {
    std::lock_guard<std::mutex> guard(lock_);
    return task.is_done;
  }

  void WaitFor(const HostTask& task) {
    std::unique_lock<std::mutex> guard(lock_);
    done_.wait(guard, [&] { return task.is_done; });
  }

 private:
  void Run() {
    std::unique_lock<std::mutex> guard(lock_);
    while (true) {
      if (tasks_.empty()) {
        added_.wait(guard);
        continue;
      }
      Task first = tasks_.top();
      if (first->time > Now()) {
        added_.wait_for(guard, std::chrono::nanoseconds(first->time - Now()));
        continue;  // An earlier one may have been added.
      }
      tasks_.pop();
      guard.unlock();
      first->run();
      first->run = nullptr;
      guard.lock();
      first->is_done = true;
      done_.notify_all();
    }
  }

  std::mutex lock_;
  std::condition_variable added_, done_;
  std::priority_queue<Task, std::vector<Task>, RunsLater> tasks_;
  int64_t next_number_ = 0;
};

// Never destroyed, as its thread never ends.
Runner& TheRunner() {
  static Runner* runner = new Runner;
  return *runner;
}

}  // namespace

std::shared_ptr<const HostTask> RunOnHost(Nanos time, std::function<void()> run) {
  return TheRunner().Add(time, std::move(run));
}

bool IsDone(const std::shared_ptr<const HostTask>& task) {
  return task == nullptr || TheRunner().IsDone(*task);
}

void WaitFor(const std::shared_ptr<const HostTask>& task) {
  if (task != nullptr) TheRunner().WaitFor(*task);
}

std::shared_ptr<const HostTask> LastOf(std::shared_ptr<const HostTask> one,
                                       std::shared_ptr<const HostTask> other) {
  if (one == nullptr) return other;
  if (other == nullptr) return one;
  return RunsBefore(*one, *other) ? other : one;
}

}  // namespace simgpu
