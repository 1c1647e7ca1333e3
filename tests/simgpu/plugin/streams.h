// Streams, events and timers.
//
// Everything a stream does is done when it is enqueued: kernels compute and bytes move on the
// calling thread. What a stream keeps is when a GPU would be done with it. So no thread is needed
// per stream, waiting costs no processor, and several GPUs are busy at the same time on one core.
//
// Data is never read too early: whoever enqueues has enqueued, and thereby computed, all that it
// depends on. It is never overwritten too early either: TensorFlow keeps both ends of a copy until
// the event after it.
#ifndef SIMGPU_STREAMS_H_
#define SIMGPU_STREAMS_H_

#include <memory>

#include "clock.h"
#include "host_tasks.h"
#include "machine.h"

namespace simgpu {

// A point in a stream: reached at a time, and when the host has run the last task before it.
struct Moment {
  Nanos time = 0;
  std::shared_ptr<const HostTask> after;

  bool IsReached() const { return time <= Now() && IsDone(after); }
  void Wait() const {
    SleepUntil(time);
    WaitFor(after);
  }
};

struct Span {
  Nanos begin, end;
};

// Has a stream work for some time, from the moment it was asked to, or when it is free. Needs the
// machine's lock.
Span Occupy(SP_Stream stream, Nanos asked, Nanos duration);

Moment Later(const Moment& one, const Moment& other);

void SetStreamFunctions(SP_StreamExecutor* executor);
void SetTimerFunctions(SP_TimerFns* functions);

}  // namespace simgpu

struct SP_Stream_st {
  simgpu::Device* device;
  int number;
  simgpu::Moment end;  // When the stream has done all that is enqueued; under the machine's lock.
};

#endif
