/* The exec requests, and the service that keeps execs and streams going. */
#ifndef HOLDFAST_EXECS_H
#define HOLDFAST_EXECS_H

#include "server.h"

extern const struct service exec_service;

#endif
