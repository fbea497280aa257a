/* The filter of a segment's keys, whose format storage/erasures/key_filter.py describes. */

#include "functions.h"

#include "records.h"

#include <stdlib.h>
#include <string.h>

#define SECTIONS_MAX 64
#define ENTRY_BITS 11
#define EVERYWHERE (1u << ENTRY_BITS)
#define BUCKET_ENTRIES 8 /* on average */
#define PAGE_BUCKETS 64
#define BUCKET_FULL 255 /* in place of a number of entries */
#define RANGE_HASHES 4096 /* so many are sorted at once, on average */

static uint32_t *hashes_of(PyObject *hashes, size_t *count)
{
    static uint32_t none[1];
    if (!PyByteArray_Check(hashes)) {
        return NULL;
    }
    *count = (size_t)PyByteArray_Size(hashes) / sizeof(uint32_t);
    if (*count == 0) {
        return none; /* An empty array has no bytes of its own. */
    }
    char *bytes = PyByteArray_AsString(hashes);
    return (uintptr_t)bytes % sizeof(uint32_t) == 0 ? (uint32_t *)(void *)bytes : NULL;
}

PyObject *add_hashes(PyObject *module, PyObject *const *arguments, Py_ssize_t given)
{
    (void)module;
    struct views views = {.count = 0};
    struct key_table secret;
    const uint8_t *secret_bytes, *payload;
    size_t secret_size, size, before;
    int32_t count;
    if (!has_arguments(given, 4)) {
        return NULL;
    }
    PyObject *hashes = arguments[0];
    if (hashes_of(hashes, &before) == NULL || !view(&views, arguments[1], PyBUF_SIMPLE, &secret_bytes, &secret_size) ||
        secret_size != sizeof secret.secret || !view(&views, arguments[2], PyBUF_SIMPLE, &payload, &size) ||
        !as_record_count(arguments[3], size, &count)) {
        return leave_to_plain_form(&views);
    }
    if (PyByteArray_Resize(hashes, (Py_ssize_t)((before + (size_t)count) * sizeof(uint32_t))) != 0) {
        release_views(&views);
        return NULL;
    }
    memcpy(secret.secret, secret_bytes, secret_size);
    size_t place = before, room;
    uint32_t *all = hashes_of(hashes, &room);
    const uint8_t *at = payload, *end = payload + size;
    bool sound = all != NULL;
    for (int32_t number = 0; sound && number < count; number++) {
        struct record record;
        sound = read_record(&at, end, &record);
        if (sound && record.key_size >= 0) {
            uint64_t hash, check;
            hash_key(&secret, record.key, (size_t)record.key_size, &hash, &check);
            all[place++] = (uint32_t)hash;
        }
    }
    sound = sound && at == end;
    if (PyByteArray_Resize(hashes, (Py_ssize_t)((sound ? place : before) * sizeof(uint32_t))) != 0) {
        release_views(&views);
        return NULL;
    }
    if (!sound) {
        return leave_to_plain_form(&views);
    }
    release_views(&views);
    return PyBool_FromLong(1);
}

static int compare_hashes(const void *one, const void *other)
{
    uint32_t first, second;
    memcpy(&first, one, sizeof first);
    memcpy(&second, other, sizeof second);
    return (first > second) - (first < second);
}

PyObject *sort_hashes(PyObject *module, PyObject *const *arguments, Py_ssize_t given)
{
    (void)module;
    struct views views = {.count = 0};
    size_t count, left = 0;
    if (!has_arguments(given, 1)) {
        return NULL;
    }
    uint32_t *hashes = hashes_of(arguments[0], &count);
    if (hashes == NULL) {
        return leave_to_plain_form(&views);
    }
    qsort(hashes, count, sizeof *hashes, compare_hashes);
    for (size_t number = 0; number < count; number++) {
        if (left == 0 || hashes[number] != hashes[left - 1]) {
            hashes[left++] = hashes[number];
        }
    }
    if (PyByteArray_Resize(arguments[0], (Py_ssize_t)(left * sizeof *hashes)) != 0) {
        return NULL;
    }
    return PyLong_FromSize_t(left);
}

/* ---------------------------------------------------------------- the keys of all sections, in the order of hashes */
/* Hashes are read range by range, so that only one range needs room beside the sections. */
struct sections {
    const uint32_t *hashes[SECTIONS_MAX];
    size_t sizes[SECTIONS_MAX], places[SECTIONS_MAX];
    size_t count;
    unsigned shift; /* the bits of a hash within its range */
    uint64_t *hits; /* those of the range: a hash, then 8 bits for its section */
    size_t hits_room;
};

static void choose_ranges(struct sections *all, size_t total)
{
    all->shift = 32;
    while (all->shift > 8 && (total >> (32 - all->shift)) > RANGE_HASHES) {
        all->shift--;
    }
}

static int compare_hits(const void *one, const void *other)
{
    uint64_t first, second;
    memcpy(&first, one, sizeof first);
    memcpy(&second, other, sizeof second);
    return (first > second) - (first < second);
}

/* Collects the hits of a range in order; returns false if there is no memory. */
static bool collect(struct sections *all, uint64_t range, size_t *count)
{
    size_t wanted = 0, ends[SECTIONS_MAX];
    for (size_t section = 0; section < all->count; section++) {
        size_t place = all->places[section];
        while (place < all->sizes[section] && (uint64_t)all->hashes[section][place] >> all->shift <= range) {
            place++;
        }
        wanted += place - all->places[section];
        ends[section] = place;
    }
    if (wanted > all->hits_room) {
        uint64_t *larger = PyMem_Realloc(all->hits, wanted * sizeof *larger);
        if (larger == NULL) {
            return false;
        }
        all->hits = larger;
        all->hits_room = wanted;
    }
    *count = 0;
    for (size_t section = 0; section < all->count; section++) {
        for (size_t place = all->places[section]; place < ends[section]; place++) {
            all->hits[(*count)++] = (uint64_t)all->hashes[section][place] << 8 | section;
        }
        all->places[section] = ends[section];
    }
    qsort(all->hits, *count, sizeof *all->hits, compare_hits);
    return true;
}

/* Receives a key, and the sections that have it as the lower bytes of `hits`. Returns false without memory. */
typedef bool (*key_reader)(void *state, uint32_t hash, const uint64_t *hits, size_t count);

static bool read_keys(struct sections *all, key_reader read, void *state)
{
    memset(all->places, 0, sizeof all->places);
    uint64_t ranges = (uint64_t)1 << (32 - all->shift);
    for (uint64_t range = 0; range < ranges; range++) {
        size_t count, end;
        if (!collect(all, range, &count)) {
            return false;
        }
        for (size_t begin = 0; begin < count; begin = end) {
            uint64_t hash = all->hits[begin] >> 8;
            for (end = begin + 1; end < count && all->hits[end] >> 8 == hash; end++) {
            }
            if (!read(state, (uint32_t)hash, all->hits + begin, end - begin)) {
                return false;
            }
        }
    }
    return true;
}

/* ---------------------------------------------------------------- pages */
static bool count_key(void *state, uint32_t hash, const uint64_t *hits, size_t count)
{
    (void)hash;
    (void)hits;
    ((uint64_t *)state)[count]++;
    return true;
}

/* Chooses in how many sections a key may be that gets an entry for each. `keys[n]`: how many are in n sections. */
static size_t choose_limit(const uint64_t *keys, size_t sections, uint64_t entries_per_key, uint64_t *entries)
{
    uint64_t all = 0, longer = 0;
    for (size_t number = 1; number <= sections; number++) {
        all += keys[number];
    }
    size_t limit = 0;
    *entries = all;
    for (size_t number = 1; number < sections; number++) {
        longer += (number - 1) * keys[number];
        if (all + longer > all * entries_per_key) {
            break;
        }
        *entries = all + longer;
        limit = number;
    }
    return limit;
}

struct pages {
    PyObject *list;
    uint64_t buckets, bucket; /* how many; the one that is being filled */
    unsigned section_bits;
    size_t limit, in_bucket, in_page;
    uint8_t counts[PAGE_BUCKETS];
    uint16_t entries[PAGE_BUCKETS * BUCKET_FULL];
};

static bool end_page(struct pages *pages)
{
    PyObject *page = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)(PAGE_BUCKETS + (3 * pages->in_page + 1) / 2));
    if (page == NULL) {
        return false;
    }
    uint8_t *bytes = (uint8_t *)PyBytes_AsString(page), *at = bytes + PAGE_BUCKETS;
    memcpy(bytes, pages->counts, PAGE_BUCKETS);
    for (size_t number = 0; number < pages->in_page; number += 2) {
        uint32_t first = pages->entries[number];
        uint32_t second = number + 1 < pages->in_page ? pages->entries[number + 1] : 0;
        *at++ = (uint8_t)first;
        *at++ = (uint8_t)(first >> 8 | second << 4);
        if (number + 1 < pages->in_page) {
            *at++ = (uint8_t)(second >> 4);
        }
    }
    pages->in_page = 0;
    memset(pages->counts, 0, PAGE_BUCKETS);
    bool added = PyList_Append(pages->list, page) == 0;
    Py_DECREF(page);
    return added;
}

/* Ends buckets until `bucket` is the one that is being filled. */
static bool move_to_bucket(struct pages *pages, uint64_t bucket)
{
    for (; pages->bucket < bucket; pages->bucket++) {
        pages->counts[pages->bucket % PAGE_BUCKETS] = (uint8_t)pages->in_bucket;
        pages->in_bucket = 0;
        if ((pages->bucket + 1) % PAGE_BUCKETS == 0 && !end_page(pages)) {
            return false;
        }
    }
    return true;
}

static void add_entry(struct pages *pages, uint32_t entry)
{
    if (pages->in_bucket == BUCKET_FULL) {
        return;
    }
    if (pages->in_bucket == BUCKET_FULL - 1) { /* The bucket is said to have everything. */
        pages->in_page -= pages->in_bucket++;
        return;
    }
    pages->entries[pages->in_page++] = (uint16_t)entry;
    pages->in_bucket++;
}

static bool write_key(void *state, uint32_t hash, const uint64_t *hits, size_t count)
{
    struct pages *pages = state;
    if (!move_to_bucket(pages, (uint64_t)hash * pages->buckets >> 32)) {
        return false;
    }
    if (count > pages->limit) {
        add_entry(pages, EVERYWHERE | (hash & (EVERYWHERE - 1)));
        return true;
    }
    for (size_t number = 0; number < count; number++) {
        add_entry(pages, (hash << pages->section_bits & (EVERYWHERE - 1)) | (uint32_t)(hits[number] & 0xff));
    }
    return true;
}

/* Returns the number of buckets and the pages; NULL with an exception. */
static PyObject *written_pages(struct sections *all, uint64_t entries_per_key)
{
    uint64_t keys[SECTIONS_MAX + 1] = {0}, entries;
    if (!read_keys(all, count_key, keys)) {
        return PyErr_NoMemory();
    }
    struct pages *pages = PyMem_Calloc(1, sizeof *pages);
    if (pages == NULL) {
        return PyErr_NoMemory();
    }
    pages->limit = choose_limit(keys, all->count, entries_per_key, &entries);
    pages->buckets = entries / BUCKET_ENTRIES + 1;
    while ((size_t)1 << pages->section_bits < all->count) {
        pages->section_bits++;
    }
    pages->list = PyList_New(0);
    bool done = pages->list != NULL && read_keys(all, write_key, pages) && move_to_bucket(pages, pages->buckets) &&
                (pages->buckets % PAGE_BUCKETS == 0 || end_page(pages));
    PyObject *list = pages->list;
    unsigned long long buckets = pages->buckets;
    PyMem_Free(pages);
    if (!done) {
        Py_XDECREF(list);
        return PyErr_Occurred() ? NULL : PyErr_NoMemory();
    }
    return Py_BuildValue("(KN)", buckets, list);
}

PyObject *filter_pages(PyObject *module, PyObject *const *arguments, Py_ssize_t given)
{
    (void)module;
    struct views views = {.count = 0};
    struct sections all = {.count = 0};
    int64_t entries_per_key;
    size_t total = 0;
    if (!has_arguments(given, 2)) {
        return NULL;
    }
    if (!PyTuple_Check(arguments[0]) || !as_int64(arguments[1], &entries_per_key) || entries_per_key < 1 ||
        PyTuple_Size(arguments[0]) > SECTIONS_MAX) {
        return leave_to_plain_form(&views);
    }
    all.count = (size_t)PyTuple_Size(arguments[0]);
    for (size_t number = 0; number < all.count; number++) {
        all.hashes[number] = hashes_of(item(arguments[0], (Py_ssize_t)number), &all.sizes[number]);
        if (all.hashes[number] == NULL) {
            return leave_to_plain_form(&views);
        }
        total += all.sizes[number];
    }
    choose_ranges(&all, total);
    PyObject *written = written_pages(&all, (uint64_t)entries_per_key);
    PyMem_Free(all.hits);
    return written;
}
