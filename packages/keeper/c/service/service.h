/* The service of a keeper: execs, streams to ports, the probe requests and the deadline. */
#ifndef HOLDFAST_SERVICE_H
#define HOLDFAST_SERVICE_H

#include "loop/server.h"

extern const struct service keeper_service;

#endif
