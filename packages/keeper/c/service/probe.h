/* The requests that report the actual state: probe and process list. */
#ifndef HOLDFAST_PROBE_H
#define HOLDFAST_PROBE_H

#include "loop/server.h"

struct outcome handle_probe(struct request *request);
struct outcome handle_processes(struct request *request);

#endif
