/* The requests that show what is really there. */
#ifndef HOLDFAST_EVIDENCE_H
#define HOLDFAST_EVIDENCE_H

#include "server.h"

struct outcome handle_probe(struct request *request);
struct outcome handle_processes(struct request *request);

#endif
