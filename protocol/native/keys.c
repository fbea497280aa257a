/* Finds the last offset of each key, and removes records with later ones from a batch, see records.h. */

#include "records.h"

#include <string.h>

#define SPAN_MAX ((int64_t)1 << 38) /* the range of the upper bits of a value */

static uint64_t rotate(uint64_t value, unsigned bits)
{
    return value << bits | value >> (64 - bits);
}

static void sip_round(uint64_t v[4])
{
    v[0] += v[1];
    v[1] = rotate(v[1], 13) ^ v[0];
    v[0] = rotate(v[0], 32);
    v[2] += v[3];
    v[3] = rotate(v[3], 16) ^ v[2];
    v[0] += v[3];
    v[3] = rotate(v[3], 21) ^ v[0];
    v[2] += v[1];
    v[1] = rotate(v[1], 17) ^ v[2];
    v[2] = rotate(v[2], 32);
}

/* SipHash-1-3 with 128 bits: without the secret, clients cannot choose keys that collide. */
void hash_key(const struct key_table *table, const uint8_t *key, size_t size, uint64_t *hash, uint64_t *check)
{
    const uint64_t *secret = table->secret;
    uint64_t v[4] = {secret[0] ^ 0x736f6d6570736575u, secret[1] ^ 0x646f72616e646f6du ^ 0xee,
                     secret[0] ^ 0x6c7967656e657261u, secret[1] ^ 0x7465646279746573u};
    size_t place = 0;
    for (; size - place >= 8; place += 8) {
        uint64_t word;
        memcpy(&word, key + place, 8);
        v[3] ^= word;
        sip_round(v);
        v[0] ^= word;
    }
    uint64_t last = (uint64_t)size << 56;
    for (unsigned shift = 0; place < size; place++, shift += 8) {
        last |= (uint64_t)key[place] << shift;
    }
    v[3] ^= last;
    sip_round(v);
    v[0] ^= last;
    v[2] ^= 0xee;
    for (int round = 0; round < 3; round++) {
        sip_round(v);
    }
    *hash = v[0] ^ v[1] ^ v[2] ^ v[3];
    v[1] ^= 0xdd;
    for (int round = 0; round < 3; round++) {
        sip_round(v);
    }
    *check = (v[0] ^ v[1] ^ v[2] ^ v[3]) & ((1u << CHECK_BITS) - 1);
}

/* Finds the place of a key, or a free one for it; returns false if the table is full. */
static bool find_place(const struct key_table *table, const struct record *record, size_t *found, uint64_t *hash,
                       uint64_t *check)
{
    hash_key(table, record->key, (size_t)record->key_size, hash, check);
    size_t place = (size_t)*hash & table->mask;
    for (size_t tried = 0; tried <= table->mask; tried += 2) {
        int64_t value = table->places[place];
        if (value == 0 ||
            (((uint64_t)value & ((1u << CHECK_BITS) - 1)) == *check && (uint64_t)table->places[place + 1] == *hash)) {
            *found = place;
            return true;
        }
        place = (place + 2) & table->mask;
    }
    return false;
}

static int64_t offset_of(int64_t value)
{
    return value >> CHECK_BITS;
}

/* Returns whether records with rising offsets fill the payload. */
static bool are_sound(const uint8_t *payload, size_t size, int32_t record_count, int32_t *last_delta)
{
    const uint8_t *at = payload, *end = payload + size;
    *last_delta = -1;
    for (int32_t number = 0; number < record_count; number++) {
        struct record record;
        if (!read_record(&at, end, &record) || record.offset_delta <= *last_delta) {
            return false;
        }
        *last_delta = record.offset_delta;
    }
    return at == end;
}

bool note_keys(const struct key_table *table, const uint8_t *payload, size_t size, int32_t record_count, int64_t shift,
               int64_t first_delta, int64_t room, struct noted *noted)
{
    const uint8_t *at = payload, *end = payload + size;
    int64_t begin = noted->records;
    int32_t last_delta;
    if (!are_sound(payload, size, record_count, &last_delta) || shift < 1 || shift > SPAN_MAX - last_delta) {
        return false;
    }
    *noted = (struct noted){.last_delta = -1};
    for (; noted->records < record_count; noted->records++) {
        struct record record;
        if (!read_record(&at, end, &record)) {
            return false;
        }
        if (noted->records < begin || record.offset_delta < first_delta || record.key_size < 0) {
            continue;
        }
        size_t place;
        uint64_t hash, check;
        if (!find_place(table, &record, &place, &hash, &check)) {
            return false;
        }
        if (table->places[place] == 0) {
            if (noted->added >= room) {
                return true;
            }
            table->places[place + 1] = (int64_t)hash;
            noted->added++;
        }
        table->places[place] = (int64_t)((uint64_t)(shift + record.offset_delta) << CHECK_BITS | check);
        noted->last_delta = record.offset_delta;
    }
    noted->last_delta = last_delta;
    return true;
}

static bool is_gone(const struct key_table *table, const struct record *record, const struct retention *retention,
                    bool *gone)
{
    bool is_below = record->offset_delta <= retention->latest_delta;
    if (record->key_size < 0) {
        *gone = is_below;
        return true;
    }
    if (record->value_size < 0 && retention->drops_tombstones && is_below) {
        *gone = true;
        return true;
    }
    size_t place;
    uint64_t hash, check;
    if (!find_place(table, record, &place, &hash, &check)) {
        return false;
    }
    int64_t value = table->places[place];
    *gone = value != 0 && offset_of(value) > retention->shift + record->offset_delta;
    return true;
}

static uint64_t shifted_size(const struct record *record, const uint8_t *end, int64_t timestamp_delta)
{
    return 1 + varint_size(timestamp_delta) + (uint64_t)(end - record->after_timestamp);
}

bool measure_retained(const struct key_table *table, const uint8_t *payload, size_t size, int32_t record_count,
                      const struct retention *retention, uint8_t *gone, struct retained *retained)
{
    const uint8_t *at = payload, *end = payload + size;
    uint64_t shifted = 0;
    bool can_shift = true;
    int32_t last_delta;
    *retained = (struct retained){.max_timestamp_delta = INT64_MIN};
    if (!are_sound(payload, size, record_count, &last_delta) || retention->shift < INT64_MIN / 2 ||
        retention->shift > INT64_MAX / 2) {
        return false;
    }
    for (int32_t number = 0; number < record_count; number++) {
        const uint8_t *start = at;
        struct record record;
        bool goes;
        if (!read_record(&at, end, &record) || !is_gone(table, &record, retention, &goes)) {
            return false;
        }
        gone[number] = goes;
        if (goes) {
            continue;
        }
        retained->records++;
        retained->size += (size_t)(at - start);
        retained->has_tombstones |= record.value_size < 0;
        if (record.timestamp_delta > retained->max_timestamp_delta) {
            retained->max_timestamp_delta = record.timestamp_delta;
        }
        int64_t timestamp_delta;
        if (retention->sets_horizon) {
            can_shift &= !__builtin_add_overflow(record.timestamp_delta, retention->timestamp_shift, &timestamp_delta);
            uint64_t body = shifted_size(&record, at, timestamp_delta);
            shifted += varint_size((int64_t)body) + body;
        }
    }
    retained->is_rewritten = retention->sets_horizon && retained->has_tombstones;
    if (retained->is_rewritten) {
        retained->size = (size_t)shifted;
    }
    return can_shift || !retained->is_rewritten;
}

bool write_retained(const uint8_t *payload, size_t size, int32_t record_count, const struct retention *retention,
                    const uint8_t *gone, const struct retained *retained, uint8_t *out)
{
    const uint8_t *at = payload, *end = payload + size;
    uint8_t *place = out, *stop = out + retained->size;
    for (int32_t number = 0; number < record_count; number++) {
        const uint8_t *start = at;
        struct record record;
        if (!read_record(&at, end, &record)) {
            return false;
        }
        if (gone[number]) {
            continue;
        }
        if (!retained->is_rewritten) {
            if (at - start > stop - place) {
                return false;
            }
            memcpy(place, start, (size_t)(at - start));
            place += at - start;
            continue;
        }
        int64_t timestamp_delta = record.timestamp_delta + retention->timestamp_shift;
        uint64_t body = shifted_size(&record, at, timestamp_delta);
        if (varint_size((int64_t)body) + body > (uint64_t)(stop - place)) {
            return false;
        }
        place = write_varint(place, (int64_t)body);
        *place++ = *record.attributes;
        place = write_varint(place, timestamp_delta);
        memcpy(place, record.after_timestamp, (size_t)(at - record.after_timestamp));
        place += at - record.after_timestamp;
    }
    return place == stop;
}
