#include "files/serve.h"

#include <errno.h>
#include <unistd.h>

#include "files/files.h"
#include "loop/server.h"

int serve_files(int fd, const struct serve_options *options) {
  struct server server;
  struct link *link = NULL;
  if (server_init(&server, NULL, &file_service)) {
    server.installation = options->installation;
    server.sandbox = options->sandbox;
    file_rules_init(&server.files, &options->files);
    link = link_open(&server, fd);
  }
  if (!link) {
    int error = errno ? errno : ENOMEM;
    server_end(&server);
    close(fd);
    errno = error;
    return -1;
  }
  while (server.links[0]) server_turn(&server);
  server_end(&server);
  return 0;
}
