// Functions that a stream asks the host to run once it has come to them.
#ifndef SIMGPU_HOST_TASKS_H_
#define SIMGPU_HOST_TASKS_H_

#include <functional>
#include <memory>

#include "clock.h"

namespace simgpu {

struct HostTask {
  Nanos time;      // When the stream comes to it.
  int64_t number;  // Tasks of the same time run in the order in which they were added.
  std::function<void()> run;
  bool is_done = false;
};

// Has one thread run a function at a time, or at once if that is past.
std::shared_ptr<const HostTask> RunOnHost(Nanos time, std::function<void()> run);

bool IsDone(const std::shared_ptr<const HostTask>& task);

void WaitFor(const std::shared_ptr<const HostTask>& task);

// Of two tasks the one that runs last: once it is done, so is the other. Both may be null.
std::shared_ptr<const HostTask> LastOf(std::shared_ptr<const HostTask> one,
                                       std::shared_ptr<const HostTask> other);

}  // namespace simgpu

#endif
