/* The requests that create, move, remove and change directory entries. */
#ifndef HOLDFAST_FILE_OPS_H
#define HOLDFAST_FILE_OPS_H

#include "loop/server.h"

struct outcome handle_mkdir(struct request *request);
struct outcome handle_remove(struct request *request);
struct outcome handle_rename(struct request *request);
struct outcome handle_chmod(struct request *request);
struct outcome handle_chown(struct request *request);
struct outcome handle_symlink(struct request *request);
struct outcome handle_hardlink(struct request *request);
struct outcome handle_utimes(struct request *request);

#endif
