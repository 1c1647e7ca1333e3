// Gives TensorFlow's profiler a plane for each device, as its tracer of CUDA does.
#include <algorithm>
#include <chrono>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "exported.h"
#include "machine.h"
#include "tensorflow/c/experimental/pluggable_profiler/pluggable_profiler.h"
#include "tsl/profiler/protobuf/xplane.pb.h"

namespace simgpu {
namespace {

using tensorflow::profiler::XEvent;
using tensorflow::profiler::XLine;
using tensorflow::profiler::XPlane;
using tensorflow::profiler::XSpace;

// The profiler's clock is the time of day.
Nanos SinceEpoch(Nanos time) {
  const Nanos today = std::chrono::duration_cast<std::chrono::nanoseconds>(
                          std::chrono::system_clock::now().time_since_epoch())
                          .count();
  return time - Now() + today;
}

std::string KindOf(const Record& record) {
  if (record.name != nullptr) return "Compute";
  if (record.from == kHost) return "MemcpyH2D";
  if (record.to == kHost) return "MemcpyD2H";
  return record.from == record.to ? "MemcpyD2D" : "MemcpyP2P";
}

// The plane of one device.
class Plane {
 public:
  Plane(XPlane* plane, int device, Nanos begin, Nanos offset)
      : plane_(plane), begin_(begin), offset_(offset) {
    plane_->set_name("/device:GPU:" + std::to_string(device));
    plane_->set_id(device);
  }

  void Add(const Record& record) {
    XLine* line = LineOf(record);
    XEvent* event = line->add_events();
    event->set_offset_ps((record.begin - begin_) * 1000);
    event->set_duration_ps((record.end - record.begin) * 1000);
    if (record.name != nullptr) {
      event->set_metadata_id(EventNamed(record.name->type));
      AddStat(event, "tf_op")->set_str_value(record.name->node + ":" + record.name->type);
    } else {
      event->set_metadata_id(EventNamed(KindOf(record)));
      AddStat(event, "memcpy_details")
          ->set_str_value("size:" + std::to_string(record.num_bytes) +
                          " dest:" + std::to_string(record.to) + " async:1");
    }
  }

 private:
  // One for each stream, named by what it is used for.
  XLine* LineOf(const Record& record) {
    XLine*& line = lines_[record.stream];
    if (line == nullptr) {
      line = plane_->add_lines();
      line->set_id(record.stream);
      line->set_timestamp_ns(begin_ + offset_);
    }
    std::set<std::string>& kinds = kinds_[record.stream];
    if (kinds.insert(KindOf(record)).second) {
      std::string names;
      for (const std::string& kind : kinds) names += (names.empty() ? "" : ",") + kind;
      line->set_name("Stream #" + std::to_string(record.stream) + "(" + names + ")");
    }
    return line;
  }

  int64_t EventNamed(const std::string& name) {
    auto [place, is_new] = events_.emplace(name, events_.size() + 1);
    if (is_new) {
      auto& metadata = (*plane_->mutable_event_metadata())[place->second];
      metadata.set_id(place->second);
      metadata.set_name(name);
    }
    return place->second;
  }

  tensorflow::profiler::XStat* AddStat(XEvent* event, const std::string& name) {
    auto [place, is_new] = stats_.emplace(name, stats_.size() + 1);
    if (is_new) {
      auto& metadata = (*plane_->mutable_stat_metadata())[place->second];
      metadata.set_id(place->second);
      metadata.set_name(name);
    }
    auto* stat = event->add_stats();
    stat->set_metadata_id(place->second);
    return stat;
  }

  XPlane* plane_;
  Nanos begin_, offset_;
  std::map<int, XLine*> lines_;
  std::map<int, std::set<std::string>> kinds_;
  std::map<std::string, int64_t> events_, stats_;
};

XSpace SpaceOf(std::vector<Record> records) {
  XSpace space;
  std::sort(records.begin(), records.end(),
            [](const Record& one, const Record& other) { return one.begin < other.begin; });
  if (records.empty()) return space;
  const Nanos begin = records.front().begin, offset = SinceEpoch(0);
  std::map<int, Plane> planes;
  for (const Record& record : records) {
    auto plane = planes.find(record.device);
    if (plane == planes.end()) {
      plane = planes.emplace(record.device, Plane(space.add_planes(), record.device, begin, offset))
                  .first;
    }
    plane->second.Add(record);
  }
  return space;
}

std::string& Collected() {
  static auto* collected = new std::string;
  return *collected;
}

void Start(const TP_Profiler*, TF_Status* status) {
  Guard guard(TheMachine().lock);
  TheMachine().records.StartCollecting();
  SetOk(status);
}

void Stop(const TP_Profiler*, TF_Status* status) {
  Guard guard(TheMachine().lock);
  Collected() = SpaceOf(TheMachine().records.StopCollecting()).SerializeAsString();
  SetOk(status);
}

// Called twice: for the size, and with a buffer of that size.
void Collect(const TP_Profiler*, uint8_t* buffer, size_t* size, TF_Status* status) {
  Guard guard(TheMachine().lock);
  if (buffer != nullptr) std::copy(Collected().begin(), Collected().end(), buffer);
  *size = Collected().size();
  SetOk(status);
}

}  // namespace
}  // namespace simgpu

EXPORTED void TF_InitProfiler(TF_ProfilerRegistrationParams* parameters, TF_Status* status) {
  parameters->struct_size = TF_PROFILER_REGISTRATION_PARAMS_STRUCT_SIZE;
  parameters->profiler->struct_size = TP_PROFILER_STRUCT_SIZE;
  parameters->profiler->device_type = "GPU";
  parameters->profiler_fns->struct_size = TP_PROFILER_FNS_STRUCT_SIZE;
  parameters->profiler_fns->start = simgpu::Start;
  parameters->profiler_fns->stop = simgpu::Stop;
  parameters->profiler_fns->collect_data_xspace = simgpu::Collect;
  parameters->destroy_profiler = [](TP_Profiler*) {};
  parameters->destroy_profiler_fns = [](TP_ProfilerFns*) {};
  simgpu::SetOk(status);
}
