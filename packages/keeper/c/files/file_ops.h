/* The requests about names: making, moving, removing and changing what they stand for. */
#ifndef HOLDFAST_NAMES_H
#define HOLDFAST_NAMES_H

#include "server.h"

struct outcome handle_mkdir(struct request *request);
struct outcome handle_remove(struct request *request);
struct outcome handle_rename(struct request *request);
struct outcome handle_chmod(struct request *request);
struct outcome handle_chown(struct request *request);
struct outcome handle_symlink(struct request *request);
struct outcome handle_hardlink(struct request *request);
struct outcome handle_utimes(struct request *request);

#endif
