/* FlashBlox's interface for log-structured programs (Huang et al., FAST '17, Table 3): virtual SSDs on a drive in a
 * file. Link with librackweave_vssd.a -lpthread -ldl -lm.
 *
 * A program allocates a virtual SSD, then blocks of it; it writes each block once, from start to end, in whole pages,
 * reads anywhere in the written part, and frees blocks whose contents are obsolete. Written data is durable after
 * fbx_sync. A freed block is erased some time after the next sync; after a power cut before that it exists again, whole
 * or its beginning.
 *
 * Every call but fbx_close returns 0, or one of the errors below, of which fbx_error returns the message. A call that
 * fails changes nothing, unless the drive failed or wore out under it (FBX_E_DEVICE, FBX_E_WORN_OUT, FBX_E_SEALED): a
 * prefix of a write may then exist, and fbx_next_block returns its length. One thread may use a drive at a time. */
#ifndef RACKWEAVE_VSSD_H
#define RACKWEAVE_VSSD_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct fbx_drive fbx_drive;
typedef uint32_t vssd_t;  /* never 0, never used again */
typedef uint64_t block_t; /* the virtual SSD in the high half, the block's number in the low */

/* isolationLevel */
enum {
  FBX_ISOLATION_NONE = 0,
  FBX_ISOLATION_SOFTWARE = 1,
  FBX_ISOLATION_DIE = 2,
  FBX_ISOLATION_CHANNEL = 3,
};

enum {
  FBX_OK = 0,
  FBX_E_NULL = 1,              /* a pointer is null, or a name is not UTF-8 */
  FBX_E_PROFILE = 2,           /* no such device profile, or it cannot have this capacity */
  FBX_E_OPEN = 3,              /* the file cannot be opened, or holds something else */
  FBX_E_RECOVERY = 4,          /* the drive's record is damaged or of another drive */
  FBX_E_ISOLATION = 5,         /* no such isolation level */
  FBX_E_LEVEL = 6,             /* no such throughput level */
  FBX_E_CAPACITY = 7,          /* a capacity of 0 */
  FBX_E_NO_ROOM = 8,           /* more isolation than the drive has free; the message says what would fit */
  FBX_E_TOO_MANY = 9,          /* the drive has its most virtual SSDs */
  FBX_E_UNKNOWN_VSSD = 10,     /* never allocated */
  FBX_E_DEAD_VSSD = 11,        /* deallocated */
  FBX_E_VSSD_IN_USE = 12,      /* requests are pending */
  FBX_E_FOREIGN_BLOCK = 13,    /* a block of another virtual SSD */
  FBX_E_NO_SUCH_BLOCK = 14,    /* past the end of the virtual SSD */
  FBX_E_FREED_BLOCK = 15,      /* freed, or never allocated */
  FBX_E_UNALIGNED_LENGTH = 16, /* not a positive multiple of the page size */
  FBX_E_UNALIGNED_OFFSET = 17, /* not a multiple of the page size */
  FBX_E_WRITTEN_TWICE = 18,    /* the page was written already */
  FBX_E_OUT_OF_ORDER = 19,     /* pages before it are not written */
  FBX_E_PAST_END = 20,         /* does not fit the block */
  FBX_E_SEALED = 21,           /* partly written when the drive was opened: takes no more */
  FBX_E_UNWRITTEN = 22,        /* the range is not written to its end */
  FBX_E_BUSY = 23,             /* requests for the block are pending */
  FBX_E_NO_FREE_BLOCK = 24,    /* all blocks are allocated */
  FBX_E_QUEUE_FULL = 25,       /* a die's queue is full */
  FBX_E_WORN_OUT = 26,         /* the virtual SSD is worn out: read-only */
  FBX_E_CORRUPT = 27,          /* contents do not match their checksum */
  FBX_E_DEVICE = 28,           /* the drive failed: no more writes */
  FBX_E_NOT_READY = 29,        /* the drive is not recovered */
  FBX_E_SIZE = 30,             /* no buffer can have this size */
};

/* Opens the drive in the file, creating it if there is none: a built-in device profile ("p-ssd", ...) scaled to at
 * most `bytes`. A drive is opened with the profile and size of its creation. */
int fbx_open(const char *path, const char *profile, uint64_t bytes, fbx_drive **drive);
/* Makes everything durable and closes the drive. The pointer is invalid afterwards, after an error as well. */
int fbx_close(fbx_drive *drive);
/* Message of the last call that failed, on this drive or, if it is null, in fbx_open of this thread. Valid until the
 * next call. */
const char *fbx_error(const fbx_drive *drive);

/* AllocVirtualSSD */
int fbx_alloc_virtual_ssd(fbx_drive *drive, int isolation_level, int tput_level, uint64_t capacity, vssd_t *vssd);
/* DeallocVirtualSSD */
int fbx_dealloc_virtual_ssd(fbx_drive *drive, vssd_t vssd);
/* GetBlockSize: bytes of a block, and of a page in it (which may be null). */
int fbx_get_block_size(fbx_drive *drive, vssd_t vssd, uint64_t *block_size, uint32_t *page_size);
/* ReadData: block i of the virtual SSD lies at i * block size. */
int fbx_read_data(fbx_drive *drive, vssd_t vssd, void *buf, uint64_t offset, size_t size);
/* AllocBlock. A block without written data is not allocated after the next fbx_open, whatever was synced: writing it
 * returns FBX_E_FREED_BLOCK, and its number may be allocated again. */
int fbx_alloc_block(fbx_drive *drive, vssd_t vssd, block_t *block);
/* WriteData: appends whole pages. */
int fbx_write_data(fbx_drive *drive, vssd_t vssd, block_t block, const void *buf, size_t size);
/* As fbx_write_data, refused unless `offset` in the block is where its next page goes. */
int fbx_write_data_at(fbx_drive *drive, vssd_t vssd, block_t block, uint64_t offset, const void *buf, size_t size);
/* FreeBlock */
int fbx_free_block(fbx_drive *drive, vssd_t vssd, block_t block);

/* Makes all earlier writes and frees durable. */
int fbx_sync(fbx_drive *drive);
/* The first allocated block whose number is at least `from`, and the bytes written in it; FBX_E_NO_SUCH_BLOCK: none. */
int fbx_next_block(fbx_drive *drive, vssd_t vssd, uint32_t from, block_t *block, uint64_t *written);

#ifdef __cplusplus
}
#endif
#endif
