#include "streams.h"

#include <algorithm>

struct SP_Event_st {
  simgpu::Moment moment;
};

struct SP_Timer_st {
  simgpu::Nanos begin = 0, end = 0;
};

namespace simgpu {
namespace {

// Streams.

void CreateStream(const SP_Device* device, SP_Stream* stream, TF_Status* status) {
  Guard guard(TheMachine().lock);
  Device& self = DeviceOf(device);
  *stream = new SP_Stream_st{&self, ++self.num_streams_created};
  self.streams.insert(*stream);
  SetOk(status);
}

void DestroyStream(const SP_Device* device, SP_Stream stream) {
  Guard guard(TheMachine().lock);
  DeviceOf(device).streams.erase(stream);
  delete stream;
}

void WaitForStream(const SP_Device*, SP_Stream dependent, SP_Stream other, TF_Status* status) {
  Guard guard(TheMachine().lock);
  dependent->end = Later(dependent->end, other->end);
  SetOk(status);
}

void StreamStatus(const SP_Device*, SP_Stream, TF_Status* status) { SetOk(status); }

TF_Bool CallHost(const SP_Device*, SP_Stream stream, SE_StatusCallbackFn function, void* argument) {
  Guard guard(TheMachine().lock);
  stream->end.after = RunOnHost(stream->end.time, [=] {
    TF_Status* status = TF_NewStatus();
    function(argument, status);
    TF_DeleteStatus(status);
  });
  return 1;
}

// Events.

void CreateEvent(const SP_Device*, SP_Event* event, TF_Status* status) {
  *event = new SP_Event_st;
  SetOk(status);
}

void DestroyEvent(const SP_Device*, SP_Event event) { delete event; }

void RecordEvent(const SP_Device* device, SP_Stream stream, SP_Event event, TF_Status* status) {
  Guard guard(TheMachine().lock);
  ++DeviceOf(device).counters.events;
  event->moment = stream->end;
  SetOk(status);
}

Moment MomentOf(SP_Event event) {
  Guard guard(TheMachine().lock);
  return event->moment;
}

SE_EventStatus EventStatus(const SP_Device*, SP_Event event) {
  return MomentOf(event).IsReached() ? SE_EVENT_COMPLETE : SE_EVENT_PENDING;
}

void WaitForEvent(const SP_Device*, SP_Stream stream, SP_Event event, TF_Status* status) {
  Guard guard(TheMachine().lock);
  stream->end = Later(stream->end, event->moment);
  SetOk(status);
}

// The host waits.

Moment CountWait(const SP_Device* device, Moment moment) {
  ++DeviceOf(device).counters.host_waits;
  return moment;
}

void HostWaitsForEvent(const SP_Device* device, SP_Event event, TF_Status* status) {
  Moment moment;
  {
    Guard guard(TheMachine().lock);
    moment = CountWait(device, event->moment);
  }
  moment.Wait();
  SetOk(status);
}

void HostWaitsForStream(const SP_Device* device, SP_Stream stream, TF_Status* status) {
  Moment moment;
  {
    Guard guard(TheMachine().lock);
    moment = CountWait(device, stream->end);
  }
  moment.Wait();
  SetOk(status);
}

void HostWaitsForAll(const SP_Device* device, TF_Status* status) {
  Moment moment;
  {
    Guard guard(TheMachine().lock);
    for (SP_Stream stream : DeviceOf(device).streams) moment = Later(moment, stream->end);
    CountWait(device, moment);
  }
  moment.Wait();
  SetOk(status);
}

// Timers.

void CreateTimer(const SP_Device*, SP_Timer* timer, TF_Status* status) {
  *timer = new SP_Timer_st;
  SetOk(status);
}

void DestroyTimer(const SP_Device*, SP_Timer timer) { delete timer; }

Nanos Position(SP_Stream stream) {
  Guard guard(TheMachine().lock);
  return std::max(stream->end.time, Now());
}

void StartTimer(const SP_Device*, SP_Stream stream, SP_Timer timer, TF_Status* status) {
  timer->begin = Position(stream);
  SetOk(status);
}

void StopTimer(const SP_Device*, SP_Stream stream, SP_Timer timer, TF_Status* status) {
  timer->end = Position(stream);
  SetOk(status);
}

uint64_t TimedNanos(SP_Timer timer) { return timer->end - timer->begin; }

}  // namespace

Span Occupy(SP_Stream stream, Nanos asked, Nanos duration) {
  const Nanos begin = std::max(stream->end.time, asked);
  stream->end.time = begin + duration;
  return {begin, stream->end.time};
}

Moment Later(const Moment& one, const Moment& other) {
  return {std::max(one.time, other.time), LastOf(one.after, other.after)};
}

void SetStreamFunctions(SP_StreamExecutor* executor) {
  executor->create_stream = CreateStream;
  executor->destroy_stream = DestroyStream;
  executor->create_stream_dependency = WaitForStream;
  executor->get_stream_status = StreamStatus;
  executor->host_callback = CallHost;
  executor->create_event = CreateEvent;
  executor->destroy_event = DestroyEvent;
  executor->record_event = RecordEvent;
  executor->get_event_status = EventStatus;
  executor->wait_for_event = WaitForEvent;
  executor->block_host_for_event = HostWaitsForEvent;
  executor->block_host_until_done = HostWaitsForStream;
  executor->synchronize_all_activity = HostWaitsForAll;
  executor->create_timer = CreateTimer;
  executor->destroy_timer = DestroyTimer;
  executor->start_timer = StartTimer;
  executor->stop_timer = StopTimer;
}

void SetTimerFunctions(SP_TimerFns* functions) { functions->nanoseconds = TimedNanos; }

}  // namespace simgpu
