/* The header of a request, see head.h. Source: protocol guide, KIP-482. */

#include "head.h"

bool is_ascii(const uint8_t *text, size_t size)
{
    uint8_t all = 0;
    for (size_t place = 0; place < size; place++) {
        all |= text[place];
    }
    return all < 0x80;
}

bool read_request_head(const uint8_t *frame, size_t size, bool is_flexible, struct request_head *head)
{
    if (size < FIXED_HEAD_BYTES) {
        return false;
    }
    head->api_key = (int16_t)(frame[0] << 8 | frame[1]);
    head->version = (int16_t)(frame[2] << 8 | frame[3]);
    head->correlation_id =
        (int32_t)((uint32_t)frame[4] << 24 | (uint32_t)frame[5] << 16 | (uint32_t)frame[6] << 8 | frame[7]);
    head->client_id_size = (int16_t)(frame[8] << 8 | frame[9]);
    head->client_id = frame + FIXED_HEAD_BYTES;
    head->size = FIXED_HEAD_BYTES;
    if (head->client_id_size < -1) {
        return false;
    }
    if (head->client_id_size > 0) {
        size_t client_id_size = (size_t)head->client_id_size;
        if (client_id_size > size - head->size || !is_ascii(head->client_id, client_id_size)) {
            return false;
        }
        head->size += client_id_size;
    }
    if (is_flexible) {
        if (head->size == size || frame[head->size] != 0) {
            return false;
        }
        head->size++;
    }
    return true;
}
