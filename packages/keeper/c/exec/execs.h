/* Handles the exec requests, and advances execs and streams. */
#ifndef HOLDFAST_EXECS_H
#define HOLDFAST_EXECS_H

#include "loop/server.h"

extern const struct service exec_service;

#endif
