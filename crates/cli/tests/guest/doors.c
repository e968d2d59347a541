// A seeded load on a block device, the reading back of all of it, and the judgement of what was found.
//
//   doors load DEVICE SHARED LOAD SEED LIFE FROM TO   makes requests FROM to TO of each process of life LIFE
//   doors probe DEVICE SHARED LOAD SEED LIFE READS    reads only, with the same skew
//   doors check DEVICE SHARED                         notes the version of each block, then flushes
//   doors judge SHARED LOAD SEED LIFE                 compares that with what life LIFE wrote; its notes become the base
//
// LOAD is "small", requests of 4 KiB whose popularity has no locality, or "mixed", 4 to 64 KiB in extents of 64 KiB
// whose popularity differs. Popularity is Zipf's with exponent 1, in integers, so that the judge, on another machine,
// makes the same requests. Each process has extents of its own and one request at a time. SHARED is memory or a file
// that outlives the guest: it says how far each process has come, without I/O of its own.

#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define PAGE 4096
#define SECTOR 512
#define BLOCKS (1 << 16) // of a page each: 256 MiB
#define EXTENT 16        // blocks
#define PROCESSES 4
#define OWN (BLOCKS / PROCESSES)
#define FLUSH_EACH 32 // requests of a process
#define PROBES (1 << 20) // the lives whose requests are probes
#define ATTEMPTS 20 // to read
#define MIXED (1ull << 63) // a block whose sectors differ in version; the oldest is noted
#define WRONG (1ull << 62) // a block with content that was never written there

struct shared {
    struct {
        volatile uint64_t life, begun, acked, flushed, failed_reads, wrong_reads, unused[2];
    } process[PROCESSES];
    uint64_t base[BLOCKS], found[BLOCKS];
};

enum kind { READ, WRITE, FLUSH };

struct request {
    enum kind kind;
    uint32_t block, count;
};

static struct shared *shared;
static int small;
static uint64_t seed, popularity[OWN + 1];
static uint32_t items;

static uint64_t mix(uint64_t x) { // splitmix64
    x += 0x9e3779b97f4a7c15;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9;
    x = (x ^ x >> 27) * 0x94d049bb133111eb;
    return x ^ x >> 31;
}

static int failed(const char *what) {
    fprintf(stderr, "doors: %s: %s\n", what, strerror(errno));
    return 1;
}

static void choose_load(const char *name) {
    small = !strcmp(name, "small");
    items = small ? OWN : OWN / EXTENT;
    for (uint32_t rank = 0; rank < items; rank++)
        popularity[rank + 1] = popularity[rank] + (1ull << 40) / (rank + 1);
}

// The blocks of request number of a process in a life.
static struct request request(uint32_t process, uint64_t life, uint64_t number) {
    uint64_t random = mix(mix(seed ^ life << 40 ^ (uint64_t)process << 32) ^ number);
    uint64_t drawn = mix(random) % popularity[items];
    uint32_t low = 0, high = items - 1;
    while (low < high) {
        uint32_t middle = (low + high) / 2;
        if (popularity[middle + 1] > drawn) high = middle;
        else low = middle + 1;
    }
    // An odd factor permutes a power of two; it scatters neighbours in popularity.
    uint32_t item = low * 0x9e3779b1u % items, own = item * (small ? 1 : EXTENT);
    struct request made = {.kind = random >> 32 & 1 ? WRITE : READ, .count = 1};
    if (!small) {
        made.count = 1 << (random >> 40) % 5;
        own += (random >> 48) % (EXTENT / made.count) * made.count;
    }
    made.block = (own / EXTENT * PROCESSES + process) * EXTENT + own % EXTENT;
    if (number % FLUSH_EACH == FLUSH_EACH - 1) made.kind = FLUSH;
    return made;
}

static void fill(unsigned char *page, uint32_t block, uint64_t version) {
    for (uint32_t sector = 0; sector < PAGE / SECTOR; sector++) {
        uint64_t *words = (uint64_t *)(page + sector * SECTOR);
        words[0] = version;
        uint64_t word = mix(version ^ (uint64_t)block << 20 ^ sector);
        for (uint32_t at = 1; at < SECTOR / 8; at++) words[at] = word += 0x9e3779b97f4a7c15;
    }
}

// The version of a block, 0 if it was never written.
static uint64_t version_of(const unsigned char *page, uint32_t block) {
    static const unsigned char zeros[SECTOR];
    static unsigned char wanted[PAGE];
    uint64_t oldest = ~0ull, newest = 0;
    for (uint32_t sector = 0; sector < PAGE / SECTOR; sector++) {
        const unsigned char *bytes = page + sector * SECTOR;
        uint64_t version;
        memcpy(&version, bytes, sizeof version);
        if (version != 0) fill(wanted, block, version);
        if (memcmp(bytes, version ? wanted + sector * SECTOR : zeros, SECTOR)) return WRONG;
        if (version < oldest) oldest = version;
        if (version > newest) newest = version;
    }
    return oldest | (oldest == newest ? 0 : MIXED);
}

// Reads, and again where the device fails to: some caches do that when they reuse the place they read from.
static int read_blocks(int device, uint32_t process, unsigned char *bytes, uint32_t block, uint32_t count) {
    for (int attempt = 0; attempt < ATTEMPTS; attempt++) {
        if (pread(device, bytes, count * PAGE, (off_t)block * PAGE) == (ssize_t)count * PAGE) return 0;
        shared->process[process].failed_reads++;
    }
    return failed("read");
}

static int load(int device, uint32_t process, uint64_t life, uint64_t from, uint64_t to) {
    unsigned char *bytes = aligned_alloc(PAGE, EXTENT * PAGE);
    uint64_t *expected = malloc(sizeof shared->base);
    memcpy(expected, shared->base, sizeof shared->base);
    for (uint64_t number = 0; number < to; number++) {
        struct request made = request(process, life, number);
        size_t length = made.count * PAGE;
        off_t at = (off_t)made.block * PAGE;
        if (made.kind == WRITE) {
            for (uint32_t block = 0; block < made.count; block++) {
                expected[made.block + block] = life << 32 | (number + 1);
                if (number >= from) fill(bytes + block * PAGE, made.block + block, life << 32 | (number + 1));
            }
        }
        if (number < from) continue; // an earlier run of this life made it
        shared->process[process].begun = number + 1;
        if (made.kind == FLUSH) {
            if (fdatasync(device)) return failed("flush");
            shared->process[process].flushed = number + 1;
        } else if (made.kind == WRITE) {
            if (pwrite(device, bytes, length, at) != (ssize_t)length) return failed("write");
        } else {
            if (read_blocks(device, process, bytes, made.block, made.count)) return 1;
            for (uint32_t block = 0; block < made.count; block++)
                if (version_of(bytes + block * PAGE, made.block + block) != expected[made.block + block])
                    shared->process[process].wrong_reads++;
        }
        shared->process[process].acked = number + 1;
    }
    return 0;
}

static int probe(int device, uint32_t process, uint64_t life, uint64_t reads) {
    unsigned char *bytes = aligned_alloc(PAGE, EXTENT * PAGE);
    for (uint64_t number = 0; number < reads; number++) {
        struct request made = request(process, PROBES + life, number);
        if (read_blocks(device, process, bytes, made.block, made.count)) return 1;
    }
    return 0;
}

static int check(int device) {
    unsigned char *bytes = aligned_alloc(PAGE, EXTENT * PAGE);
    for (uint32_t block = 0; block < BLOCKS; block += EXTENT) {
        if (read_blocks(device, 0, bytes, block, EXTENT)) return 1;
        for (uint32_t own = 0; own < EXTENT; own++)
            shared->found[block + own] = version_of(bytes + own * PAGE, block + own);
    }
    return fdatasync(device) ? failed("flush") : 0; // the next life builds on what was read
}

// Compares what was found with the blocks' history in a life. A line of JSON.
static int judge(uint64_t life) {
    uint64_t *flushed = malloc(sizeof shared->base), *acked = malloc(sizeof shared->base);
    unsigned char *kept = calloc(BLOCKS, 1); // a version that may be there
    uint64_t requests = 0, lost = 0, gone = 0, unflushed = 0, mixed = 0, wrong = 0;
    memcpy(flushed, shared->base, sizeof shared->base);
    memcpy(acked, shared->base, sizeof shared->base);
    for (uint32_t block = 0; block < BLOCKS; block++)
        kept[block] = (shared->found[block] & ~MIXED) == shared->base[block];
    for (uint32_t process = 0; process < PROCESSES; process++) {
        if (shared->process[process].life != life) continue;
        requests += shared->process[process].acked;
        for (uint64_t number = 0; number < shared->process[process].begun; number++) {
            struct request made = request(process, life, number);
            if (made.kind != WRITE) continue;
            for (uint32_t block = made.block; block < made.block + made.count; block++) {
                uint64_t version = life << 32 | (number + 1);
                if (number < shared->process[process].flushed) flushed[block] = version;
                if (number < shared->process[process].acked) acked[block] = version;
                if ((shared->found[block] & ~MIXED) == version) kept[block] = 1;
            }
        }
    }
    for (uint32_t block = 0; block < BLOCKS; block++) {
        uint64_t found = shared->found[block] & ~MIXED;
        unflushed += acked[block] != flushed[block];
        mixed += shared->found[block] != found;
        if (found & WRONG) wrong++;
        else if (found < flushed[block]) lost++; // also to before this life, whose check flushed what it read
        else if (!kept[block]) wrong++;
        else if (found < acked[block]) gone++;
        shared->base[block] = found;
    }
    printf("{\"requests\":%llu,\"unflushed\":%llu,\"unflushed_missing\":%llu,\"flushed_missing\":%llu,"
           "\"mixed\":%llu,\"wrong\":%llu}\n",
           (unsigned long long)requests, (unsigned long long)unflushed, (unsigned long long)gone,
           (unsigned long long)lost, (unsigned long long)mixed, (unsigned long long)wrong);
    return 0;
}

static int each_process(int device, int (*work)(int, uint32_t, const uint64_t *), const uint64_t *numbers) {
    int status, bad = 0;
    for (uint32_t process = 0; process < PROCESSES; process++)
        if (fork() == 0) exit(work(device, process, numbers));
    while (wait(&status) > 0) bad |= status;
    return bad != 0;
}

static int load_of(int device, uint32_t process, const uint64_t *numbers) {
    return load(device, process, numbers[0], numbers[1], numbers[2]);
}

static int probe_of(int device, uint32_t process, const uint64_t *numbers) {
    return probe(device, process, numbers[0], numbers[1]);
}

int main(int count, char **arguments) {
    const char *command = count > 1 ? arguments[1] : "";
    int on_device = strcmp(command, "judge") != 0, next = on_device ? 3 : 2, device = -1;
    if (count <= next) return 2;
    int file = open(arguments[next], O_RDWR | O_SYNC);
    if (file < 0) return failed(arguments[next]);
    shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (shared == MAP_FAILED) return failed("map the shared memory");
    if (on_device && (device = open(arguments[2], O_RDWR | O_DIRECT)) < 0) return failed(arguments[2]);
    if (!strcmp(command, "check")) return check(device);
    if (count < next + 4) return 2;
    choose_load(arguments[next + 1]);
    seed = strtoull(arguments[next + 2], NULL, 10);
    uint64_t numbers[3] = {0};
    for (int at = next + 3; at < count && at < next + 6; at++) numbers[at - next - 3] = strtoull(arguments[at], NULL, 10);
    if (!strcmp(command, "judge")) return judge(numbers[0]);
    if (!strcmp(command, "probe")) return each_process(device, probe_of, numbers);
    for (uint32_t process = 0; process < PROCESSES && numbers[1] == 0; process++) {
        shared->process[process].begun = shared->process[process].acked = shared->process[process].flushed = 0;
        shared->process[process].life = numbers[0];
    }
    return each_process(device, load_of, numbers);
}
