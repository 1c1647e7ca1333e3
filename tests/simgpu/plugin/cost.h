// How long work takes on a simulated GPU. Nothing takes any time unless it is asked for.
#ifndef SIMGPU_COST_H_
#define SIMGPU_COST_H_

#include "clock.h"
#include "work.h"

namespace simgpu {

// A part of the machine that is limited by a rate, in units per second; 0 is no limit.
inline double Seconds(double amount, double rate) { return rate > 0 ? amount / rate : 0; }

// The layout is known to `costs.py`.
struct Cost {
  double flops = 0;             // Per second.
  double half_flops = 0;        // Per second, in 16 bits.
  double memory_bandwidth = 0;  // Bytes per second, as all bandwidths.
  double launch = 0;            // Seconds for each kernel, beside its work.
  double host_bandwidth = 0;    // Per direction.
  double host_latency = 0;      // Seconds.
  double peer_bandwidth = 0;
  double peer_latency = 0;
  double time_scale = 1;

  bool IsFree() const {
    return flops == 0 && half_flops == 0 && memory_bandwidth == 0 && launch == 0 &&
           host_bandwidth == 0 && host_latency == 0 && peer_bandwidth == 0 && peer_latency == 0;
  }
  Nanos OfKernel(const Work& work) const;
  Nanos InMemory(double bytes) const { return Scaled(launch + Seconds(bytes, memory_bandwidth)); }
  Nanos Scaled(double seconds) const { return static_cast<Nanos>(seconds * time_scale * 1e9); }
};

}  // namespace simgpu

#endif
