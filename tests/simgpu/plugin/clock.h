// The clock that simulated time is measured by: the machine's own, which nobody sets back.
#ifndef SIMGPU_CLOCK_H_
#define SIMGPU_CLOCK_H_

#include <chrono>
#include <cstdint>
#include <thread>

namespace simgpu {

using Nanos = int64_t;

inline Nanos Now() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

inline void SleepUntil(Nanos time) {
  std::this_thread::sleep_until(
      std::chrono::steady_clock::time_point(std::chrono::nanoseconds(time)));
}

}  // namespace simgpu

#endif
