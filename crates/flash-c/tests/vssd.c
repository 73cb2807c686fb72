/* A small log on the interface of rackweave_vssd.h, and every misuse that a program can commit. The drive is the file
 * named first; "again" after it: the drive was closed and is opened again. */
#include "rackweave_vssd.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SIZE (1u << 30)

static int failures;

static void expect(const char *what, int got, int wanted, const fbx_drive *d) {
  if (got != wanted) {
    fprintf(stderr, "%s: %d, not %d (%s)\n", what, got, wanted, fbx_error(d));
    failures++;
  }
}
#define WANT(error, call) expect(#call, call, error, d)

static void fill(unsigned char *b, size_t n, unsigned seed) {
  for (size_t i = 0; i < n; i++)
    b[i] = (unsigned char)((seed + i) * 2654435761u >> 13);
}

static void misuse(fbx_drive *d, vssd_t v, vssd_t other, unsigned char *page, uint32_t page_size, uint64_t size) {
  block_t b = 0, gone = 0;
  WANT(FBX_OK, fbx_alloc_block(d, v, &b));
  WANT(FBX_OK, fbx_write_data(d, v, b, page, page_size));
  WANT(FBX_E_WRITTEN_TWICE, fbx_write_data_at(d, v, b, 0, page, page_size));
  WANT(FBX_E_OUT_OF_ORDER, fbx_write_data_at(d, v, b, 2 * (uint64_t)page_size, page, page_size));
  WANT(FBX_E_UNALIGNED_OFFSET, fbx_write_data_at(d, v, b, page_size + 1, page, page_size));
  WANT(FBX_E_UNALIGNED_LENGTH, fbx_write_data(d, v, b, page, 100));
  WANT(FBX_E_UNALIGNED_LENGTH, fbx_write_data(d, v, b, page, 0));
  volatile size_t too_long = SIZE_MAX / page_size * page_size;
  WANT(FBX_E_SIZE, fbx_write_data(d, v, b, page, too_long));
  WANT(FBX_E_SIZE, fbx_write_data_at(d, v, b, page_size, page, too_long));
  WANT(FBX_E_SIZE, fbx_read_data(d, v, page, 0, too_long));
  WANT(FBX_E_PAST_END, fbx_write_data_at(d, v, b, size, page, page_size));
  WANT(FBX_E_FOREIGN_BLOCK, fbx_write_data(d, other, b, page, page_size));
  WANT(FBX_E_FOREIGN_BLOCK, fbx_free_block(d, other, b));
  WANT(FBX_E_NO_SUCH_BLOCK, fbx_free_block(d, v, ((uint64_t)v << 32) + 4000000));
  WANT(FBX_E_UNWRITTEN, fbx_read_data(d, v, page, (b & 0xffffffff) * size + 1, page_size));
  WANT(FBX_OK, fbx_free_block(d, v, b));
  WANT(FBX_E_FREED_BLOCK, fbx_free_block(d, v, b));
  WANT(FBX_E_FREED_BLOCK, fbx_write_data(d, v, b, page, page_size));
  WANT(FBX_E_FREED_BLOCK, fbx_read_data(d, v, page, (b & 0xffffffff) * size, 1));
  int error = 0;
  while ((error = fbx_alloc_block(d, v, &gone)) == FBX_OK) {
  }
  expect("allocating all blocks", error, FBX_E_NO_FREE_BLOCK, d);
  WANT(FBX_OK, fbx_dealloc_virtual_ssd(d, v));
  WANT(FBX_E_DEAD_VSSD, fbx_dealloc_virtual_ssd(d, v));
  WANT(FBX_E_DEAD_VSSD, fbx_alloc_block(d, v, &b));
  WANT(FBX_E_UNKNOWN_VSSD, fbx_alloc_block(d, 999, &b));
  vssd_t w = 0;
  WANT(FBX_E_ISOLATION, fbx_alloc_virtual_ssd(d, 4, 0, 1, &w));
  WANT(FBX_E_LEVEL, fbx_alloc_virtual_ssd(d, FBX_ISOLATION_DIE, -1, 1, &w));
  WANT(FBX_E_CAPACITY, fbx_alloc_virtual_ssd(d, FBX_ISOLATION_DIE, 0, 0, &w));
  WANT(FBX_E_NO_ROOM, fbx_alloc_virtual_ssd(d, FBX_ISOLATION_CHANNEL, 0, (uint64_t)1 << 50, &w));
  if (strstr(fbx_error(d), "would fit") == NULL) {
    fprintf(stderr, "the error does not say what would fit: %s\n", fbx_error(d));
    failures++;
  }
  WANT(FBX_E_NULL, fbx_alloc_block(d, v, NULL));
  WANT(FBX_E_NULL, fbx_write_data(d, v, b, NULL, page_size));
}

static void first(const char *path, fbx_drive *d) {
  vssd_t log = 0, other = 0, dies = 0;
  uint64_t size = 0;
  uint32_t page_size = 0;
  WANT(FBX_OK, fbx_alloc_virtual_ssd(d, FBX_ISOLATION_CHANNEL, 1, 1, &log));
  WANT(FBX_OK, fbx_alloc_virtual_ssd(d, FBX_ISOLATION_DIE, 0, 1, &dies));
  WANT(FBX_OK, fbx_alloc_virtual_ssd(d, FBX_ISOLATION_SOFTWARE, 0, 1, &other));
  WANT(FBX_OK, fbx_get_block_size(d, dies, &size, &page_size));
  unsigned char *page = malloc(page_size);
  fill(page, page_size, 1);
  misuse(d, dies, other, page, page_size, size);
  WANT(FBX_OK, fbx_get_block_size(d, log, &size, NULL));
  unsigned char *buf = malloc(size);
  for (unsigned i = 0; i < 3; i++) {
    block_t b = 0;
    fill(buf, size, i);
    WANT(FBX_OK, fbx_alloc_block(d, log, &b));
    WANT(FBX_OK, fbx_write_data(d, log, b, buf, size / 2));
    WANT(FBX_OK, fbx_write_data_at(d, log, b, size / 2, buf + size / 2, size - size / 2));
  }
  WANT(FBX_OK, fbx_sync(d));
  fbx_drive *twice = NULL;
  int e = fbx_open(path, "no-ssd", SIZE, &twice);
  if (e != FBX_E_PROFILE || strstr(fbx_error(NULL), "no-ssd") == NULL) {
    fprintf(stderr, "an unknown profile: %d %s\n", e, fbx_error(NULL));
    failures++;
  }
  free(buf);
  free(page);
}

static void again(fbx_drive *d) {
  const vssd_t log = 1;
  uint64_t size = 0, written = 0, blocks = 0;
  WANT(FBX_OK, fbx_get_block_size(d, log, &size, NULL));
  unsigned char *buf = malloc(size), *wanted = malloc(size);
  block_t b = 0;
  for (uint32_t from = 0; fbx_next_block(d, log, from, &b, &written) == FBX_OK; from = (uint32_t)b + 1) {
    WANT(FBX_OK, fbx_read_data(d, log, buf, (b & 0xffffffff) * size, written));
    fill(wanted, size, (unsigned)(b & 0xffffffff));
    if (written != size || memcmp(buf, wanted, size) != 0) {
      fprintf(stderr, "block %llx: other contents\n", (unsigned long long)b);
      failures++;
    }
    blocks++;
  }
  if (blocks != 3) {
    fprintf(stderr, "%llu blocks, not 3\n", (unsigned long long)blocks);
    failures++;
  }
  WANT(FBX_E_DEAD_VSSD, fbx_get_block_size(d, 2, &size, NULL));
  free(buf);
  free(wanted);
}

int main(int argc, char **argv) {
  fbx_drive *d = NULL;
  if (argc < 2)
    return 2;
  int e = fbx_open(argv[1], "femu", SIZE, &d);
  if (e != FBX_OK) {
    fprintf(stderr, "%s: %d %s\n", argv[1], e, fbx_error(NULL));
    return 1;
  }
  if (argc > 2)
    again(d);
  else
    first(argv[1], d);
  expect("fbx_close", fbx_close(d), FBX_OK, NULL);
  return failures != 0;
}
