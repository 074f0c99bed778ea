/* The file requests. Handles belong to a link and are closed with it. */
#ifndef HOLDFAST_FILES_H
#define HOLDFAST_FILES_H

#include "files/path.h"
#include "files/serve.h"
#include "loop/server.h"

/* The file requests, and the functions that the loop calls for the handles and watches of its links. */
extern const struct file_service file_service;

void file_rules_init(struct file_rules *rules, const struct file_policy *policy);

/* Returns `value`, or `otherwise` if the request did not set the field. */
uint32_t given_or(uint32_t value, uint32_t otherwise);
/* Reads the owner from a request. A uid or gid that the request does not set stays unset. */
struct owner read_owner(struct request *request);
/* Returns `given` with the default uid and gid in the fields that the request did not set. */
struct owner owner_or_default(const struct request *request, struct owner given);

#endif
