/* The file requests. Handles belong to a link and vanish with it. */
#ifndef HOLDFAST_FILES_H
#define HOLDFAST_FILES_H

#include "serve.h"
#include "server.h"

extern const struct route file_routes[];

void file_rules_init(struct file_rules *rules, const struct file_policy *policy);
void files_link_gone(struct link *link);

#endif
