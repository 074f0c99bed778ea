/* The file requests. Handles belong to a link and vanish with it. */
#ifndef HOLDFAST_FILES_H
#define HOLDFAST_FILES_H

#include "path.h"
#include "serve.h"
#include "server.h"

extern const struct route file_routes[];

void file_rules_init(struct file_rules *rules, const struct file_policy *policy);
/* Mounts and devices have other numbers after a restore, and the old ones may be those of something else by then. */
void file_rules_renew(struct file_rules *rules);
void files_link_gone(struct link *link);

/* A field that may be left open. */
uint32_t said_or(uint32_t value, uint32_t otherwise);
/* The two fields of an owner, as they were sent; and the owner where they are left open. */
struct owner read_owner(struct request *request);
struct owner owner_or_default(const struct request *request, struct owner said);

#endif
