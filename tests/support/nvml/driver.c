/* A stand-in for NVIDIA's driver library with NVML's ABI: GPUs whose curves are known.

   KERAS_MGPU_TEST_GPUS says how many there are. GPU i has
     utilization   sawtooth 0, 10, …, 90 % every 20 ms, plus i; ring of the last 100 samples;
                   100 % in one of them, KERAS_MGPU_TEST_PEAK seconds after the library was begun
     power         100 W + 10 W * i, in the ring too
     memory        80 GiB in all, (i + 1) GiB used: half by this process, half by another
     temperature   40 °C + i
     energy        (100 + 10 i) J a second
     NVLink        sent 1000 * (i + 1) KiB a second, received twice as much
   GPU 2 supports none but memory and temperature, and has no ring.
   GPU 3 falls off the bus KERAS_MGPU_TEST_LOST seconds after it was first read.
   GPU 4 is cut into two MIG devices. */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

typedef int nvmlReturn_t;
typedef struct gpu *nvmlDevice_t;

enum {
  SUCCESS = 0,
  INVALID_ARGUMENT = 2,
  NOT_SUPPORTED = 3,
  NOT_FOUND = 6,
  INSUFFICIENT_SIZE = 7,
  GPU_IS_LOST = 15
};
enum { POWER_SAMPLES = 0, UTILIZATION_SAMPLES = 1, MEMORY_SAMPLES = 2 };
enum { UNSIGNED_INT = 1, UNSIGNED_LONG_LONG = 3 };
enum { NVLINK_SENT = 138, NVLINK_RECEIVED = 139 };
enum { RING = 100, PERIOD = 20000 };

typedef union {
  double d;
  unsigned int ui;
  unsigned long ul;
  unsigned long long ull;
} value_t;
typedef struct {
  unsigned long long time;
  value_t value;
} sample_t;
typedef struct {
  unsigned long long total, free, used;
} memory_t;
typedef struct {
  unsigned int pid;
  unsigned long long used;
  unsigned int gpu_instance, compute_instance;
} process_t;
typedef struct {
  unsigned int field, scope;
  long long time, latency;
  int type, result;
  value_t value;
} field_t;

struct gpu {
  int index;
  int mig; /* 0 for a whole GPU, or the number of its part from 1. */
};

static struct gpu gpus[16];
static struct gpu migs[2] = {{4, 1}, {4, 2}};
static int num_gpus = 0;
static double lost_since = 0;
static double begun = 0;

static double clock_offset = 0; /* Rings go by the system's clock, which may be set. */
void test_set_clock(double seconds) { clock_offset = seconds; }

static double test_time = 0; /* A test may decide what time it is. */
void test_set_time(double seconds) { test_time = seconds; }

static double now(void) {
  if (test_time) return test_time;
  struct timespec t;
  clock_gettime(CLOCK_REALTIME, &t);
  return t.tv_sec + t.tv_nsec * 1e-9;
}

static nvmlReturn_t check(nvmlDevice_t gpu) {
  const char *lost = getenv("KERAS_MGPU_TEST_LOST");
  if (gpu->index == 3 && lost) {
    if (!lost_since) lost_since = now();
    if (now() - lost_since > atof(lost)) return GPU_IS_LOST;
  }
  return SUCCESS;
}

/* What most questions come to: lost, not supported, or an answer. */
static nvmlReturn_t ask(nvmlDevice_t gpu) {
  nvmlReturn_t result = check(gpu);
  if (result == SUCCESS && gpu->index == 2) result = NOT_SUPPORTED;
  return result;
}

nvmlReturn_t nvmlInitWithFlags(unsigned int flags) {
  const char *count = getenv("KERAS_MGPU_TEST_GPUS");
  num_gpus = count ? atoi(count) : 1;
  begun = now();
  lost_since = 0;
  for (int i = 0; i < num_gpus; i++) gpus[i].index = i;
  return SUCCESS;
}
nvmlReturn_t nvmlShutdown(void) { return SUCCESS; }

const char *nvmlErrorString(nvmlReturn_t result) {
  switch (result) {
    case NOT_SUPPORTED: return "Not Supported";
    case GPU_IS_LOST: return "GPU is lost";
    default: return "stand-in";
  }
}

nvmlReturn_t nvmlDeviceGetCount_v2(unsigned int *count) {
  *count = num_gpus;
  return SUCCESS;
}

nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned int index, nvmlDevice_t *device) {
  if (index >= (unsigned)num_gpus) return INVALID_ARGUMENT;
  *device = &gpus[index];
  return SUCCESS;
}

nvmlReturn_t nvmlDeviceGetHandleByPciBusId_v2(const char *bus, nvmlDevice_t *device) {
  unsigned int domain, place;
  if (sscanf(bus, "%x:%x", &domain, &place) != 2 || place >= (unsigned)num_gpus) return NOT_FOUND;
  *device = &gpus[place];
  return SUCCESS;
}

nvmlReturn_t nvmlDeviceGetUUID(nvmlDevice_t gpu, char *uuid, unsigned int length) {
  snprintf(uuid, length, "GPU-%08x-0000-0000-0000-000000000000", 0xaa0 + gpu->index);
  return SUCCESS;
}

nvmlReturn_t nvmlDeviceGetHandleByUUID(const char *uuid, nvmlDevice_t *device) {
  for (int i = 0; i < 2; i++) {
    char name[32];
    snprintf(name, sizeof name, "MIG-part-%d", i + 1);
    if (strcmp(uuid, name) == 0) {
      *device = &migs[i];
      return SUCCESS;
    }
  }
  return NOT_FOUND;
}

static unsigned int utilization(nvmlDevice_t gpu, unsigned long long tick) {
  const char *peak = getenv("KERAS_MGPU_TEST_PEAK");
  if (peak && tick == (unsigned long long)((begun + atof(peak)) * 1e6) / PERIOD) return 100;
  return 10 * (tick % 10) + gpu->index;
}

nvmlReturn_t nvmlDeviceGetSamples(nvmlDevice_t gpu, int type, unsigned long long since,
                                  int *value_type, unsigned int *count, sample_t *samples) {
  nvmlReturn_t result = ask(gpu);
  if (result != SUCCESS) return result;
  if (gpu->mig) return NOT_SUPPORTED;
  unsigned long long newest = (unsigned long long)((now() + clock_offset) * 1e6) / PERIOD;
  unsigned int found = 0;
  for (unsigned long long tick = newest - RING + 1; tick <= newest; tick++) {
    unsigned long long time = tick * PERIOD;
    if (time <= since) continue;
    if (samples && found < *count) {
      samples[found].time = time;
      samples[found].value.ull = 0;
      samples[found].value.ui = type == POWER_SAMPLES ? 100000 + 10000 * gpu->index
                                : type == UTILIZATION_SAMPLES ? utilization(gpu, tick)
                                                              : 50;
    }
    found++;
  }
  *value_type = UNSIGNED_INT;
  *count = found;
  return found ? SUCCESS : NOT_FOUND;
}

typedef struct {
  unsigned int gpu, memory;
} utilization_t;

nvmlReturn_t nvmlDeviceGetUtilizationRates(nvmlDevice_t gpu, utilization_t *rates) {
  return NOT_SUPPORTED;
}

nvmlReturn_t nvmlDeviceGetPowerUsage(nvmlDevice_t gpu, unsigned int *milliwatts) {
  *milliwatts = 100000 + 10000 * gpu->index;
  return ask(gpu);
}

nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t gpu, memory_t *memory) {
  memory->total = 80ull << 30;
  memory->used = (unsigned long long)(gpu->index + 1) << 30;
  if (gpu->mig) {
    memory->total = 10ull << 30;
    memory->used = (unsigned long long)gpu->mig << 30;
  }
  memory->free = memory->total - memory->used;
  return check(gpu);
}

nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v3(nvmlDevice_t gpu, unsigned int *count,
                                                     process_t *processes) {
  nvmlReturn_t result = ask(gpu);
  if (result != SUCCESS) return result;
  if (!processes) {
    *count = 2;
    return INSUFFICIENT_SIZE;
  }
  unsigned long long half = (unsigned long long)(gpu->index + 1) << 29;
  processes[0] = (process_t){getpid(), half, 0, 0};
  processes[1] = (process_t){1, half, 0, 0};
  *count = 2;
  return SUCCESS;
}

nvmlReturn_t nvmlDeviceGetEnforcedPowerLimit(nvmlDevice_t gpu, unsigned int *milliwatts) {
  *milliwatts = 400000;
  return ask(gpu);
}

nvmlReturn_t nvmlDeviceGetTemperature(nvmlDevice_t gpu, int sensor, unsigned int *degrees) {
  *degrees = 40 + gpu->index;
  return check(gpu);
}

nvmlReturn_t nvmlDeviceGetClockInfo(nvmlDevice_t gpu, int clock, unsigned int *mhz) {
  *mhz = clock == 1 ? 1400 : 2600;
  return ask(gpu);
}

nvmlReturn_t nvmlDeviceGetCurrentClocksEventReasons(nvmlDevice_t gpu, unsigned long long *reasons) {
  *reasons = gpu->index == 1 ? 0x40 : gpu->index == 0 ? 0x4 : 0x1;
  return ask(gpu);
}

nvmlReturn_t nvmlDeviceGetPcieThroughput(nvmlDevice_t gpu, int counter, unsigned int *kilobytes) {
  *kilobytes = counter == 0 ? 5000 : 7000;
  return ask(gpu);
}

nvmlReturn_t nvmlDeviceGetFieldValues(nvmlDevice_t gpu, int count, field_t *fields) {
  for (int i = 0; i < count; i++) {
    fields[i].result = fields[i].scope == 0xffffffffu ? SUCCESS : INVALID_ARGUMENT;
    fields[i].type = UNSIGNED_LONG_LONG;
    fields[i].value.ull = (unsigned long long)(now() * 1000 * (gpu->index + 1)) *
                          (fields[i].field == NVLINK_RECEIVED ? 2 : 1);
  }
  return ask(gpu);
}

nvmlReturn_t nvmlDeviceGetTotalEccErrors(nvmlDevice_t gpu, int error, int counter,
                                         unsigned long long *count) {
  *count = error == 0 ? 3 : 0;
  return ask(gpu);
}

nvmlReturn_t nvmlDeviceGetTotalEnergyConsumption(nvmlDevice_t gpu, unsigned long long *millijoules) {
  *millijoules = (unsigned long long)(now() * 1000 * (100 + 10 * gpu->index));
  return ask(gpu);
}

typedef struct {
  unsigned int version, is_supported;
} gpm_support_t;

nvmlReturn_t nvmlGpmQueryDeviceSupport(nvmlDevice_t gpu, gpm_support_t *support) {
  support->is_supported = gpu->index == 0;
  return SUCCESS;
}

nvmlReturn_t nvmlGpmSampleAlloc(void **sample) {
  *sample = malloc(sizeof(double));
  return SUCCESS;
}

nvmlReturn_t nvmlGpmSampleFree(void *sample) {
  free(sample);
  return SUCCESS;
}

nvmlReturn_t nvmlGpmSampleGet(nvmlDevice_t gpu, void *sample) {
  *(double *)sample = now();
  return SUCCESS;
}

typedef struct {
  unsigned int id;
  int result;
  double value;
  struct {
    char *short_name, *long_name, *unit;
  } info;
} gpm_metric_t;
typedef struct {
  unsigned int version, count;
  void *first, *second;
  gpm_metric_t metrics[];
} gpm_get_t;

nvmlReturn_t nvmlGpmMetricsGet(gpm_get_t *get) {
  if (*(double *)get->second <= *(double *)get->first) return INVALID_ARGUMENT;
  for (unsigned int i = 0; i < get->count; i++) {
    get->metrics[i].result = SUCCESS;
    get->metrics[i].value = 10.0 * get->metrics[i].id;
  }
  return SUCCESS;
}
