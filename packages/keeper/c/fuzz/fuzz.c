/*
 * Sends bytes to the keeper's own loop, in a scratch directory and network namespace of its own:
 *
 * - fuzz --random SEED COUNT: COUNT rounds of generated and mutated requests, the same for the same seed
 * - fuzz FILE, or fuzz: the bytes of a file or of stdin, sent over one link
 *
 * The program is built with sanitizers, which end it with a report when they detect an error. If they detect none, the
 * program exits with 0.
 */
#include <errno.h>
#include <fcntl.h>
#include <net/if.h>
#include <netinet/in.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "exec/exec.h"
#include "exec/proc.h"
#include "exec/exec_restart.h"
#include "exec/user.h"
#include "files/files.h"
#include "files/remove.h"
#include "loop/server.h"
#include "service/service.h"
#include "stream/stream.h"

#define ROUND_FRAMES 40u
#define ROUND_ROOM (3u * MIB)
#define INPUT_MAX (64u * MIB)
#define QUIET_TURNS 20
#define DIAL_TURNS 4
/* The port that has a listener. */
#define PORT 7
/* Maximum number of connections that the listener serves at a time. */
#define PEERS 8

/*
 * Makes the address sanitizer ignore some signals. Generated requests send signals to commands, and a signal may hit a
 * child that has not executed its command yet. Such a child still contains the sanitizer, which would report the signal
 * as an error.
 */
const char *__asan_default_options(void);
const char *__asan_default_options(void) {
  return "handle_sigbus=0:handle_sigfpe=0:handle_sigill=0:handle_abort=0";
}

/* ── Randomness ────────────────────────────────────────────────────────────────────────────────────────────────── */

static uint64_t state;

static uint64_t dice(void) {
  state ^= state << 13;
  state ^= state >> 7;
  state ^= state << 17;
  return state * UINT64_C(0x2545F4914F6CDD1D);
}

static uint64_t below(uint64_t limit) {
  return (dice() >> 11) % limit;
}

static bool once_in(uint64_t count) {
  return below(count) == 0;
}

/* ── Requests ──────────────────────────────────────────────────────────────────────────────────────────────────── */

/*
 * The requests, and how often each is sent relative to the others. `fields` has one letter for each field of the
 * request:
 *
 * - n: port
 * - p: path
 * - i: exec id
 * - k: exec id that ends with a counter, for supervised commands
 * - t: text
 * - u: user
 * - d: data
 * - h: file handle
 * - w: watch
 * - s: terminal size
 * - r: restart policy
 * - a: arguments
 * - e: environment
 * - 0: flag that is rarely set
 * - 1, 4, 8: number of that many bytes
 */
static const struct {
  uint16_t type;
  uint8_t weight;
  const char *fields;
} requests[] = {
    {1, 1, "48tt"},   {2, 2, "8"},   {3, 1, "48ttn"},       {10, 3, "iaepu81s8t"}, {11, 6, "i844"}, {12, 4, "i81d"}, {13, 2, "i4"},
    {14, 2, "i"},     {15, 1, ""},   {16, 3, "i1"},         {17, 4, "is"},
    {18, 6, "kaepu80s8tr"}, {19, 2, ""}, {20, 4, "p1"},   {21, 4, "p"},
    {22, 4, "h84"},   {23, 6, "p4144"}, {24, 6, "hd"},      {25, 4, "h"},    {26, 4, "h"},    {27, 3, "p"},
    {28, 3, "h4"},    {29, 6, "p4144"}, {30, 3, "p1"},      {31, 3, "pp1"},  {32, 2, "p4"},   {33, 2, "p44"},
    {34, 3, "pp44"},  {35, 2, "pp"}, {36, 2, "p8"},         {37, 4, "p1"},   {38, 4, "w44"},  {39, 2, "w"},
    {40, 1, ""},      {41, 1, ""},   {42, 6, "i84"}, {43, 1, "8"}, {99, 1, "8"},
};

static const char *const paths[] = {
    "/",   "/a", "/a/b", "/a/b/c", "/d",         "/d/e/f/g", "//a/./b/", "/a/../d", "a",
    "/l1", "/l2", "/l1/x", "",     "/.holdfast", "/.holdfast/control", "/control/journals", "/control/keeper.sock",
};
static const char *const users[] = {"", "0", "1000:5", "root", "nobody", "1:2:3", ":", "4294967295"};
static const uint64_t numbers[] = {
    0, 1, 2, 7, 24, 63, 64, 255, 0644, 0755, 4096, 65536, 1u << 20, (1u << 20) + 1, 0x7FFFFFFF, 0xFFFFFFFF, UINT64_MAX,
    UINT64_MAX - 10, INT64_MAX,
};

static void put(struct writer *out, const void *data, size_t size) {
  uint8_t *at = writer_room(out, size);
  if (!at) abort();
  if (size > 0) memcpy(at, data, size);
  writer_keep(out, size);
}

static void put_text(struct writer *out, const char *text) {
  write_bytes(out, text, strlen(text));
}

static void put_data(struct writer *out) {
  size_t size = once_in(20) ? below(FRAME_DATA_MAX + 100) : below(200);
  write_u32(out, (uint32_t)size);
  uint8_t *at = writer_room(out, size);
  if (!at) abort();
  memset(at, (int)below(256), size);
  writer_keep(out, size);
}

static void put_list(struct writer *out, const char *first, const char *rest) {
  uint32_t count = (uint32_t)below(4);
  write_u32(out, count);
  for (uint32_t i = 0; i < count; i++) put_text(out, i == 0 ? first : rest);
}

static void put_path(struct writer *out) {
  if (!once_in(12)) {
    put_text(out, paths[below(sizeof paths / sizeof *paths)]);
    return;
  }
  char text[600] = "/";
  memset(text + 1, 'n', 1 + below(sizeof text - 3));
  put_text(out, text);
}

static void put_port(struct writer *out) {
  uint16_t port = once_in(8) ? (uint16_t)dice() : PORT + (uint16_t)once_in(8);
  write_u8(out, (uint8_t)port);
  write_u8(out, (uint8_t)(port >> 8));
}

static void put_field(struct writer *out, char field) {
  char id[16];
  uint64_t number = once_in(3) ? dice() : numbers[below(sizeof numbers / sizeof *numbers)];
  switch (field) {
    case 'n':
      put_port(out);
      break;
    case 'p':
      put_path(out);
      break;
    case 'i':
      if (once_in(2)) {
        put_field(out, 'k');
        break;
      }
      snprintf(id, sizeof id, "%c%d", once_in(30) ? '-' : 'e', (int)below(6));
      put_text(out, id);
      break;
    case 'k':
      snprintf(id, sizeof id, "k%d-%s%d", (int)below(4), once_in(10) ? "x" : "", (int)below(12));
      put_text(out, id);
      break;
    case 't':
      put_text(out, "t");
      break;
    case 'u':
      put_text(out, users[below(sizeof users / sizeof *users)]);
      break;
    case 'd':
      put_data(out);
      break;
    case 'h':
      write_u32(out, (uint32_t)((1 + below(6)) * HANDLES_MAX + below(4)));
      break;
    case 'w':
      write_u32(out, (uint32_t)((1 + below(2)) * WATCHES_MAX + below(2)));
      break;
    case 'a':
      put_list(out, once_in(2) ? "/nothing/here" : "nothing", "argument");
      break;
    case 'e':
      put_list(out, "PATH=/bin:/a", once_in(10) ? "=" : "A=b");
      break;
    case 's':
      write_u32(out, once_in(4) ? (uint32_t)number : once_in(2) ? 0 : 80u | 24u << 16);
      break;
    case 'r':
      write_u8(out, (uint8_t)(once_in(8) ? below(256) : 1 + below(2)));
      write_u32(out, (uint32_t)(once_in(8) ? number : below(4)));
      write_u32(out, (uint32_t)(once_in(8) ? number : SUPERVISED_BACKOFF_MIN_MS));
      break;
    case '0':
      write_u8(out, once_in(8));
      break;
    case '1':
      write_u8(out, (uint8_t)below(3));
      break;
    case '4':
      write_u32(out, (uint32_t)number);
      break;
    default:
      write_u64(out, number);
  }
}

static size_t pick_request(void) {
  static unsigned total;
  if (total == 0) {
    for (size_t i = 0; i < sizeof requests / sizeof *requests; i++) total += requests[i].weight;
  }
  unsigned left = (unsigned)below(total);
  size_t i = 0;
  while (left >= requests[i].weight) left -= requests[i++].weight;
  return i;
}

/* Damages a frame at random. A wrong size ends the link, so sizes are damaged rarely; other fields are
 * damaged often. */
static void damage(struct chunk *frame) {
  if (once_in(3) && frame->size > FRAME_HEADER) {
    for (uint64_t i = 1 + below(4); i > 0; i--) {
      frame->data[FRAME_HEADER + below(frame->size - FRAME_HEADER)] ^= (uint8_t)(1u << below(8));
    }
  }
  if (once_in(8) && frame->size > FRAME_HEADER) {
    frame->size -= below(frame->size - FRAME_HEADER) + 1;
    store_u32(frame->data, (uint32_t)(frame->size - 4));
  }
  if (once_in(200)) store_u32(frame->data, (uint32_t)dice());
}

static void put_request(struct writer *out) {
  size_t which = pick_request();
  struct writer frame = writer_begin((uint32_t)dice(), requests[which].type, 256);
  for (const char *field = requests[which].fields; *field; field++) put_field(&frame, *field);
  if (once_in(20)) write_u8(&frame, 0);
  struct chunk *whole = writer_end(&frame);
  if (!whole) return;
  damage(whole);
  put(out, whole->data, whole->size);
  free(whole);
}

/* Writes a hello request or a dial request. */
static void put_greeting(struct writer *out, bool dials) {
  struct writer frame = writer_begin(1, dials ? 3 : 1, 64);
  write_u32(&frame, PROTOCOL_VERSION);
  write_u64(&frame, 1);
  put_text(&frame, "");
  put_text(&frame, "");
  if (dials) put_port(&frame);
  struct chunk *whole = writer_end(&frame);
  put(out, whole->data, whole->size);
  free(whole);
}

/* Writes a chunk of a stream. Some chunks have a wrong size, and some end the stream early. */
static void put_chunk(struct writer *out, bool last) {
  size_t size = last || once_in(200) ? 0 : 1 + below(once_in(4) ? 200 * KIB : 300);
  write_u32(out, once_in(100) ? (uint32_t)dice() : (uint32_t)size);
  uint8_t *at = writer_room(out, size);
  if (!at) abort();
  memset(at, (int)below(256), size);
  writer_keep(out, size);
}

/* ── Peers ─────────────────────────────────────────────────────────────────────────────────────────────────────── */

static int listener = -1;
static int peers[PEERS];
/* Whether peers read so rarely that all buffers fill. */
static bool peers_are_lazy;

static bool open_network(void) {
  int small = 16384;
  struct ifreq loopback = {.ifr_name = "lo", .ifr_flags = IFF_UP | IFF_RUNNING};
  struct sockaddr_in address = {
      .sin_family = AF_INET, .sin_port = htons(PORT), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
  for (int i = 0; i < PEERS; i++) peers[i] = -1;
  if (unshare(CLONE_NEWNET) < 0 && unshare(CLONE_NEWUSER | CLONE_NEWNET) < 0) return false;
  listener = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  setsockopt(listener, SOL_SOCKET, SO_RCVBUF, &small, sizeof small);
  return ioctl(listener, SIOCSIFFLAGS, &loopback) == 0 &&
         bind(listener, (struct sockaddr *)&address, sizeof address) == 0 && listen(listener, 4) == 0;
}

static void close_peer(int *peer) {
  if (*peer < 0) return;
  if (once_in(3)) setsockopt(*peer, SOL_SOCKET, SO_LINGER, &(struct linger){1, 0}, sizeof(struct linger));
  close(*peer);
  *peer = -1;
}

/*
 * Performs one random action of a peer, which is the far end of a connection to the port: it accepts, reads, writes
 * or closes.
 */
static void be_peer(int *peer) {
  static uint8_t bytes[64 * 1024];
  if (*peer < 0) {
    *peer = accept4(listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
  } else if (once_in(peers_are_lazy ? 80 : 8)) {
    while (recv(*peer, bytes, sizeof bytes, MSG_DONTWAIT) > 0) continue;
  } else if (once_in(8)) {
    send(*peer, bytes, below(sizeof bytes), MSG_DONTWAIT | MSG_NOSIGNAL);
  } else if (once_in(100)) {
    shutdown(*peer, SHUT_WR);
  } else if (once_in(100)) {
    close_peer(peer);
  }
}

/* ── Feeding ───────────────────────────────────────────────────────────────────────────────────────────────────── */

static void turn(struct server *server) {
  server->due_ms = 0;
  server_turn(server);
}

static void swallow(int fd) {
  static uint8_t answers[64 * 1024];
  while (recv(fd, answers, sizeof answers, MSG_DONTWAIT) > 0) continue;
}

/* Sends the bytes to the loop in two parts: first `alone` bytes and, once their effects have settled, the rest. */
static void feed(struct server *server, const uint8_t *data, size_t size, size_t alone) {
  int pair[2], small = 4096;
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, pair) < 0) abort();
  if (alone > 0 && once_in(2)) setsockopt(pair[0], SOL_SOCKET, SO_SNDBUF, &small, sizeof small);
  struct link *link = link_open(server, pair[0]);
  if (!link) abort();
  peers_are_lazy = once_in(2);
  if (send(pair[1], data, alone, MSG_NOSIGNAL) != (ssize_t)alone) abort();
  data += alone;
  size -= alone;
  for (int i = 0; alone > 0 && i < DIAL_TURNS; i++) turn(server);
  int quiet = 0;
  while ((server->links[0] == link || streams_open() > 0) && quiet < QUIET_TURNS) {
    ssize_t sent = send(pair[1], data, size < 8192 ? size : 8192, MSG_NOSIGNAL);
    if (sent > 0) {
      data += sent;
      size -= (size_t)sent;
    }
    bool is_stuck = sent <= 0 && streams_open() > 0;
    quiet = size == 0 || is_stuck ? quiet + 1 : 0;
    turn(server);
    for (int i = 0; i < PEERS; i++) be_peer(&peers[i]);
    if (!once_in(4)) swallow(pair[1]);
  }
  close(pair[1]);
  while (server->links[0] || streams_open() > 0) turn(server);
  for (int i = 0; i < PEERS; i++) close_peer(&peers[i]);
}

/* Passes random text to the parsers of texts that do not come from a link: /proc/PID/stat and passwd files. */
static void parse_noise(void) {
  char noise[1200];
  size_t size = below(sizeof noise);
  static const char alphabet[] = "0123456789:()/ \nRSZrot\0x";
  for (size_t i = 0; i < size; i++) noise[i] = alphabet[below(sizeof alphabet)];
  char *exact = malloc(size + 1);
  if (!exact) abort();
  memcpy(exact, noise, size);
  struct process process;
  process_parse(exact, size, &process);
  struct user user;
  const char *wanted = users[below(sizeof users / sizeof *users)];
  user_resolve((struct slice){(const uint8_t *)wanted, strlen(wanted)}, exact, size, &user);
  free(exact);
}

static void feed_random(struct server *server, uint64_t seed, uint64_t count) {
  state = seed * UINT64_C(0x9E3779B97F4A7C15) + 1;
  for (uint64_t round = 0; round < count; round++) {
    struct writer out = writer_begin(0, 0, 4096);
    bool dials = once_in(4);
    if (!once_in(50)) put_greeting(&out, dials);
    size_t greeting = writer_size(&out) - FRAME_HEADER;
    for (unsigned i = 0; i < ROUND_FRAMES && writer_size(&out) < ROUND_ROOM; i++) {
      if (dials) {
        put_chunk(&out, i + 1 == ROUND_FRAMES);
      } else {
        put_request(&out);
      }
    }
    size_t alone = dials && !once_in(10) ? greeting : 0;
    feed(server, out.chunk->data + FRAME_HEADER, writer_size(&out) - FRAME_HEADER, alone);
    writer_drop(&out);
    server->generation = 1;
    parse_noise();
  }
}

static void feed_file(struct server *server, int fd) {
  uint8_t *data = malloc(INPUT_MAX);
  if (!data) abort();
  size_t size = 0;
  ssize_t got;
  state = 1;
  while (size < INPUT_MAX && (got = read(fd, data + size, INPUT_MAX - size)) > 0) size += (size_t)got;
  feed(server, data, size, 0);
  free(data);
}

/* ── The scratch root ────────────────────────────────────────────────────────────────────────────────────────────── */

/* Mounts the file system of terminals. If mounting is not permitted, the keeper refuses to start commands with a
 * terminal. */
static void mount_terminals(void) {
  if (mkdir("dev", 0755) < 0 || mkdir("dev/pts", 0755) < 0 || unshare(CLONE_NEWNS) < 0) return;
  if (mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) < 0) return;
  if (mount("devpts", "dev/pts", "devpts", MS_NOEXEC, "newinstance,ptmxmode=0666,max=8") < 0) return;
}

/*
 * Makes the scratch directory the root. If that fails, the fuzzer refuses to run, because a generated path
 * could reach files outside.
 */
static bool enter_scratch(const char *scratch) {
  if (chdir(scratch) < 0) return false;
  mount_terminals();
  if (chroot(".") < 0 && (unshare(CLONE_NEWUSER) < 0 || chroot(".") < 0)) return false;
  return mkdir("/control", 0700) == 0 && mkdir("/.holdfast", 0755) == 0 && mkdir("/a", 0755) == 0 &&
         symlink("a", "/l1") == 0 && symlink("/l2", "/l2") == 0;
}

static int run(int argc, char **argv, const char *scratch) {
  int root = open("/", O_PATH | O_DIRECTORY | O_CLOEXEC);
  int input = argc == 2 ? open(argv[1], O_RDONLY | O_CLOEXEC) : STDIN_FILENO;
  if (root < 0 || input < 0) return 2;
  if (!open_network() || !enter_scratch(scratch)) {
    fprintf(stderr, "fuzz: no network or root of its own: %s\n", strerror(errno));
    return 77;
  }
  struct server server;
  if (!execs_init("/control") || !server_init(&server, &keeper_service, &file_service)) return 2;
  prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0);
  server.reap_all = true;
  server.installation = server.sandbox = "";
  file_rules_init(&server.files, &(struct file_policy){.uid = 0, .gid = 0, .reserve = true, .control = "/control"});
  if (argc == 4) {
    feed_random(&server, strtoull(argv[2], NULL, 10), strtoull(argv[3], NULL, 10));
  } else {
    feed_file(&server, input);
  }
  server_end(&server);
  streams_end();
  supervise_end();
  execs_end();
  close(listener);
  /* At exit the sanitizer's leak check reads /proc, so the fuzzer leaves the scratch root first. */
  return fchdir(root) == 0 && chroot(".") == 0 ? 0 : 2;
}

int main(int argc, char **argv) {
  char scratch[4096];
  const char *temporary = getenv("TMPDIR");
  if (argc > 2 && !(argc == 4 && strcmp(argv[1], "--random") == 0)) {
    fprintf(stderr, "usage: fuzz [FILE] | fuzz --random SEED COUNT\n");
    return 2;
  }
  snprintf(scratch, sizeof scratch, "%s/holdfast-fuzz-XXXXXX", temporary ? temporary : "/tmp");
  if (!mkdtemp(scratch)) return 2;
  pid_t pid = fork();
  if (pid == 0) exit(run(argc, argv, scratch));
  int status = 0;
  if (pid < 0 || waitpid(pid, &status, 0) < 0) status = 2 << 8;
  struct file_rules rules = {0};
  remove_tree(AT_FDCWD, &(struct removal){&rules, scratch});
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}
