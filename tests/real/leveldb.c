/* A LevelDB that is killed: `write DB FILE` puts keys, each synced, and says in FILE how many; `check DB FILE` repairs
 * nothing, opens with paranoid checks, and looks for all of those. */
#include <leveldb/c.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void key_of(char *to, long i) { sprintf(to, "%08lx", (i * 2654435761u) & 0xffffffff); }

int main(int argc, char **argv) {
    char *error = NULL, key[32], value[400];
    if (argc != 4) return 2;
    int write = !strcmp(argv[1], "write");
    leveldb_options_t *o = leveldb_options_create();
    leveldb_options_set_create_if_missing(o, write);
    leveldb_options_set_paranoid_checks(o, 1);
    leveldb_options_set_write_buffer_size(o, 65536);
    leveldb_t *db = leveldb_open(o, argv[2], &error);
    if (error) { fprintf(stderr, "%s\n", error); return 1; }
    if (write) {
        leveldb_writeoptions_t *w = leveldb_writeoptions_create();
        leveldb_writeoptions_set_sync(w, 1);
        for (long i = 0;; i++) {
            key_of(key, i);
            memset(value, 'a' + i % 26, sizeof value);
            leveldb_put(db, w, key, strlen(key), value, sizeof value, &error);
            if (error) return 0;
            FILE *f = fopen(argv[3], "w");
            fprintf(f, "%ld\n", i + 1);
            fclose(f);
        }
    }
    long synced = 0;
    FILE *f = fopen(argv[3], "r");
    if (!f || fscanf(f, "%ld", &synced) != 1) return 2;
    leveldb_readoptions_t *r = leveldb_readoptions_create();
    leveldb_readoptions_set_verify_checksums(r, 1);
    for (long i = 0; i < synced; i++) {
        size_t n = 0;
        key_of(key, i);
        char *got = leveldb_get(db, r, key, strlen(key), &n, &error);
        if (error || n != sizeof value || got[0] != 'a' + i % 26) {
            fprintf(stderr, "key %ld of %ld: %s, %zu bytes\n", i, synced, error ? error : "no error", n);
            return 1;
        }
        free(got);
    }
    leveldb_close(db);
    return 0;
}
