#include "service/service.h"

#include "exec/exec.h"
#include "exec/execs.h"
#include "exec/exec_restart.h"
#include "service/deadline.h"
#include "service/probe.h"
#include "stream/stream.h"

static const struct route state_routes[] = {
    {40, handle_probe},
    {41, handle_processes},
    {43, handle_deadline},
    {0, NULL},
};

static const struct route *const routes[] = {exec_routes, state_routes, NULL};
static const struct route greetings[] = {{3, handle_dial}, {0, NULL}};

static void tick(struct server *server) {
  /* Runs that are due are started first, so that execs_tick handles them in this turn too. */
  supervise_begin(server);
  execs_tick(server);
  supervise_follow(server);
  streams_tick(server);
  exec_waiters_tick(server);
}

static void link_gone(struct server *server, struct link *link) {
  (void)server;
  exec_waiters_link_gone(link);
}

static void free_closed(struct server *server) {
  execs_free_forgotten(server);
  streams_free_closed();
}

const struct service keeper_service = {
    .greetings = greetings,
    .routes = routes,
    .watches_deaths = execs_watch_deaths,
    .dying = execs_dying,
    .reaped = execs_reaped,
    .tick = tick,
    .link_gone = link_gone,
    .free_closed = free_closed,
};
