#include "exec/user.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "loop/limits.h"

#define DEFAULT_ID 1000u
#define NOBODY_ID 0xFFFFFFFFu
#define PASSWD_MAX (512u * KIB)

struct fields {
  struct slice at[7];
};

static bool parse_id(struct slice text, uint32_t *id) {
  uint64_t value = 0;
  if (text.size == 0 || text.size > 10) return false;
  for (size_t i = 0; i < text.size; i++) {
    if (text.data[i] < '0' || text.data[i] > '9') return false;
    value = value * 10 + (uint64_t)(text.data[i] - '0');
  }
  if (value >= NOBODY_ID) return false;
  *id = (uint32_t)value;
  return true;
}

static bool same(struct slice a, struct slice b) {
  return a.size == b.size && memcmp(a.data, b.data, a.size) == 0;
}

static void copy_text(char *to, size_t room, struct slice from) {
  if (from.size == 0 || from.size >= room) return;
  memcpy(to, from.data, from.size);
  to[from.size] = 0;
}

/* Splits one line of a passwd file into its seven fields. */
static bool split_line(const char *line, size_t size, struct fields *fields) {
  for (int i = 0; i < 7; i++) {
    const char *colon = memchr(line, ':', size);
    size_t length = colon ? (size_t)(colon - line) : size;
    fields->at[i] = (struct slice){(const uint8_t *)line, length};
    if (i < 6 && !colon) return false;
    line += length + (colon ? 1 : 0);
    size -= length + (colon ? 1 : 0);
  }
  return true;
}

/* Finds the first line with this name, or with this uid if `name` is NULL. */
static bool look_up(const char *passwd, size_t size, const struct slice *name, uint32_t uid, struct user *user) {
  for (size_t at = 0; at < size;) {
    const char *end = memchr(passwd + at, '\n', size - at);
    size_t length = end ? (size_t)(end - passwd) - at : size - at;
    struct fields line;
    uint32_t line_uid;
    uint32_t line_gid;
    bool sound = split_line(passwd + at, length, &line) && parse_id(line.at[2], &line_uid) &&
                 parse_id(line.at[3], &line_gid);
    if (sound && (name ? same(line.at[0], *name) : line_uid == uid)) {
      user->uid = line_uid;
      user->gid = line_gid;
      copy_text(user->name, sizeof user->name, line.at[0]);
      copy_text(user->home, sizeof user->home, line.at[5]);
      return true;
    }
    at += length + 1;
  }
  return false;
}

static void set_unlisted(struct user *user, uint32_t uid) {
  bool root = uid == 0;
  user->uid = user->gid = uid;
  strcpy(user->name, root ? "root" : "user");
  strcpy(user->home, root ? "/root" : "/home/user");
}

/*
 * Returns the id of the default user. If the keeper is not root it cannot change users, so its own id is the
 * default.
 */
static uint32_t default_id(void) {
  uid_t own = geteuid();
  return own == 0 ? DEFAULT_ID : own;
}

bool user_resolve(struct slice wanted, const char *passwd, size_t size, struct user *user) {
  const uint8_t *colon = memchr(wanted.data, ':', wanted.size);
  struct slice name = {wanted.data, colon ? (size_t)(colon - wanted.data) : wanted.size};
  uint32_t uid = default_id();
  set_unlisted(user, uid);
  if (wanted.size == 0 || parse_id(name, &uid)) {
    set_unlisted(user, uid);
    look_up(passwd, size, NULL, uid, user);
    if (wanted.size == 0 && geteuid() == 0) user->gid = DEFAULT_ID;
  } else if (!look_up(passwd, size, &name, 0, user)) {
    if (!same(name, (struct slice){(const uint8_t *)"root", 4})) return false;
    set_unlisted(user, 0);
  }
  if (!colon) return true;
  return parse_id((struct slice){colon + 1, wanted.size - name.size - 1}, &user->gid);
}

/*
 * Reads the image's passwd file. An image may have anything at that path. If it is not a regular file of reasonable
 * size, it is treated as an empty file.
 */
static char *read_passwd(size_t *size) {
  int fd = open("/etc/passwd", O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
  struct stat stat;
  char *text = NULL;
  *size = 0;
  if (fd >= 0 && fstat(fd, &stat) == 0 && S_ISREG(stat.st_mode) && stat.st_size <= PASSWD_MAX) {
    text = malloc((size_t)stat.st_size + 1);
    ssize_t got = text ? read(fd, text, (size_t)stat.st_size) : 0;
    if (got > 0) *size = (size_t)got;
  }
  if (fd >= 0) close(fd);
  return text;
}

bool user_find(struct slice wanted, struct user *user) {
  size_t size;
  char *text = read_passwd(&size);
  bool found = user_resolve(wanted, text ? text : "", size, user);
  free(text);
  return found;
}
