/* A thread that syncs files without the interpreter's lock.

   The event loop submits descriptors, which stay open until it takes the outcome. The thread takes all waiting ones as
   a round, syncs each file once, and writes to an eventfd, which wakes the loop. After a failed sync, all later ones
   fail with the same error.

   Sources: fdatasync(2), eventfd(2), pthreads(7). Only on Linux, because other systems make files durable differently.
 */

#define _GNU_SOURCE

#include "functions.h"

#ifdef __linux__

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

/* The maximum number of descriptors whose outcome was not taken; the plain form syncs others. */
#define SYNCS_MAX 64

#define CAPSULE_NAME "lowtide.syncs"

/* One group commit. `failed` is the index of the file whose sync failed with `error`. */
struct sync_round {
    int64_t took_ns;
    int count, syncs, error, failed;
};

struct syncs {
    pthread_mutex_t lock;
    pthread_cond_t submitted, answered;
    int wakes;  /* the eventfd */
    int owners; /* the thread and Python; the last one frees the memory */
    bool stops;
    int error; /* of the failed sync, if any */
    int descriptors[SYNCS_MAX];
    int waiting;
    struct sync_round rounds[SYNCS_MAX];
    int done;        /* completed rounds that were not taken */
    int outstanding; /* descriptors whose outcome was not taken */
};

/* The caller holds the lock, which this releases. */
static void disown(struct syncs *syncs)
{
    bool is_last = --syncs->owners == 0;
    pthread_mutex_unlock(&syncs->lock);
    if (is_last) {
        (void)close(syncs->wakes);
        pthread_cond_destroy(&syncs->submitted);
        pthread_cond_destroy(&syncs->answered);
        pthread_mutex_destroy(&syncs->lock);
        free(syncs);
    }
}

static int64_t monotonic_ns(void)
{
    struct timespec now;
    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

static bool was_synced(const int *descriptors, int number)
{
    for (int before = 0; before < number; before++) {
        if (descriptors[before] == descriptors[number]) {
            return true;
        }
    }
    return false;
}

static struct sync_round carry_out(const int *descriptors, int count, int error)
{
    struct sync_round round = {.count = count, .error = error};
    int64_t began_ns = monotonic_ns();
    for (int number = 0; number < count && round.error == 0; number++) {
        if (was_synced(descriptors, number)) {
            continue;
        }
        int outcome;
        do {
            outcome = fdatasync(descriptors[number]);
        } while (outcome != 0 && errno == EINTR);
        round.syncs++;
        if (outcome != 0) {
            round.error = errno;
            round.failed = number;
        }
    }
    round.took_ns = monotonic_ns() - began_ns;
    return round;
}

static void *run(void *argument)
{
    struct syncs *syncs = argument;
    int descriptors[SYNCS_MAX];
    pthread_mutex_lock(&syncs->lock);
    for (;;) {
        while (syncs->waiting == 0 && !syncs->stops) {
            pthread_cond_wait(&syncs->submitted, &syncs->lock);
        }
        if (syncs->waiting == 0) {
            break;
        }
        int count = syncs->waiting, error = syncs->error;
        for (int number = 0; number < count; number++) {
            descriptors[number] = syncs->descriptors[number];
        }
        syncs->waiting = 0;
        pthread_mutex_unlock(&syncs->lock);
        struct sync_round round = carry_out(descriptors, count, error);
        pthread_mutex_lock(&syncs->lock);
        syncs->error = round.error;
        syncs->rounds[syncs->done++] = round;
        pthread_cond_signal(&syncs->answered);
        pthread_mutex_unlock(&syncs->lock);
        /* This cannot fail: the counter is read long before it is full. A superfluous wake-up is harmless. */
        uint64_t one = 1;
        ssize_t written = write(syncs->wakes, &one, sizeof one);
        (void)written;
        pthread_mutex_lock(&syncs->lock);
    }
    disown(syncs);
    return NULL;
}

static struct syncs *create(void)
{
    struct syncs *syncs = calloc(1, sizeof *syncs);
    if (syncs == NULL) {
        return NULL;
    }
    syncs->wakes = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    if (syncs->wakes < 0) {
        free(syncs);
        return NULL;
    }
    pthread_mutex_init(&syncs->lock, NULL);
    pthread_cond_init(&syncs->submitted, NULL);
    pthread_cond_init(&syncs->answered, NULL);
    syncs->owners = 2;
    /* The threads of the interpreter handle signals. */
    sigset_t all, before;
    pthread_t thread;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int refused = pthread_create(&thread, NULL, run, syncs);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (refused != 0) {
        syncs->owners = 1;
        pthread_mutex_lock(&syncs->lock);
        disown(syncs);
        return NULL;
    }
    pthread_detach(thread);
    (void)pthread_setname_np(thread, "lowtide syncs");
    return syncs;
}

static void stop(struct syncs *syncs)
{
    pthread_mutex_lock(&syncs->lock);
    syncs->stops = true;
    pthread_cond_signal(&syncs->submitted);
    disown(syncs);
}

/* ---------------------------------------------------------------- Python */
static void on_forgotten(PyObject *capsule)
{
    struct syncs *syncs = PyCapsule_GetPointer(capsule, CAPSULE_NAME);
    if (syncs != NULL && PyCapsule_GetContext(capsule) == NULL) {
        stop(syncs);
    }
}

/* Returns NULL with an exception for a closed capsule, or another object. */
static struct syncs *syncs_of(PyObject *capsule)
{
    struct syncs *syncs = PyCapsule_GetPointer(capsule, CAPSULE_NAME);
    if (syncs != NULL && PyCapsule_GetContext(capsule) != NULL) {
        PyErr_SetString(PyExc_ValueError, "the thread has been stopped");
        return NULL;
    }
    return syncs;
}

PyObject *open_syncs(PyObject *module, PyObject *const *arguments, Py_ssize_t given)
{
    (void)module;
    (void)arguments;
    if (!has_arguments(given, 0)) {
        return NULL;
    }
    struct syncs *syncs = create();
    if (syncs == NULL) {
        return Py_NewRef(Py_None);
    }
    PyObject *capsule = PyCapsule_New(syncs, CAPSULE_NAME, on_forgotten);
    if (capsule == NULL) {
        stop(syncs);
        return NULL;
    }
    return Py_BuildValue("(Ni)", capsule, syncs->wakes);
}

PyObject *submit_sync(PyObject *module, PyObject *const *arguments, Py_ssize_t given)
{
    (void)module;
    int32_t descriptor;
    struct syncs *syncs;
    if (!has_arguments(given, 2) || (syncs = syncs_of(arguments[0])) == NULL) {
        return NULL;
    }
    if (!as_int32(arguments[1], &descriptor)) {
        PyErr_SetString(PyExc_TypeError, "a descriptor is a number");
        return NULL;
    }
    pthread_mutex_lock(&syncs->lock);
    bool has_room = syncs->outstanding < SYNCS_MAX;
    if (has_room) {
        syncs->descriptors[syncs->waiting++] = descriptor;
        syncs->outstanding++;
    }
    pthread_mutex_unlock(&syncs->lock);
    if (has_room) {
        pthread_cond_signal(&syncs->submitted);
    }
    return PyBool_FromLong(has_room);
}

static PyObject *round_of(const struct sync_round *round)
{
    PyObject *made = PyTuple_New(5);
    if (made != NULL && (!put_number(made, 0, round->count) || !put_number(made, 1, round->syncs) ||
                         !put_number(made, 2, round->took_ns) || !put_number(made, 3, round->error) ||
                         !put_number(made, 4, round->failed))) {
        Py_CLEAR(made);
    }
    return made;
}

PyObject *take_synced(PyObject *module, PyObject *const *arguments, Py_ssize_t given)
{
    (void)module;
    struct syncs *syncs;
    struct sync_round rounds[SYNCS_MAX];
    uint64_t counted;
    if (!has_arguments(given, 1) || (syncs = syncs_of(arguments[0])) == NULL) {
        return NULL;
    }
    /* Before the rounds are taken: a round that completes later writes again. */
    ssize_t size = read(syncs->wakes, &counted, sizeof counted);
    (void)size;
    pthread_mutex_lock(&syncs->lock);
    int done = syncs->done;
    for (int number = 0; number < done; number++) {
        rounds[number] = syncs->rounds[number];
        syncs->outstanding -= rounds[number].count;
    }
    syncs->done = 0;
    pthread_mutex_unlock(&syncs->lock);
    PyObject *taken = PyTuple_New(done);
    for (int number = 0; taken != NULL && number < done; number++) {
        if (!put_item(taken, number, round_of(&rounds[number]))) {
            Py_CLEAR(taken);
        }
    }
    return taken;
}

PyObject *wait_synced(PyObject *module, PyObject *const *arguments, Py_ssize_t given)
{
    (void)module;
    struct syncs *syncs;
    if (!has_arguments(given, 1) || (syncs = syncs_of(arguments[0])) == NULL) {
        return NULL;
    }
    Py_BEGIN_ALLOW_THREADS pthread_mutex_lock(&syncs->lock);
    while (syncs->outstanding > 0 && syncs->done == 0) {
        pthread_cond_wait(&syncs->answered, &syncs->lock);
    }
    pthread_mutex_unlock(&syncs->lock);
    Py_END_ALLOW_THREADS return Py_NewRef(Py_None);
}

PyObject *close_syncs(PyObject *module, PyObject *const *arguments, Py_ssize_t given)
{
    (void)module;
    struct syncs *syncs;
    if (!has_arguments(given, 1) || (syncs = syncs_of(arguments[0])) == NULL) {
        return NULL;
    }
    if (PyCapsule_SetContext(arguments[0], syncs) != 0) { /* any pointer marks it as closed */
        return NULL;
    }
    stop(syncs);
    return Py_NewRef(Py_None);
}

#else

PyObject *open_syncs(PyObject *module, PyObject *const *arguments, Py_ssize_t given)
{
    (void)module;
    (void)arguments;
    if (!has_arguments(given, 0)) {
        return NULL;
    }
    return Py_NewRef(Py_None);
}

static PyObject *refuse(void)
{
    PyErr_SetString(PyExc_ValueError, "there is no such thread on this system");
    return NULL;
}

PyObject *submit_sync(PyObject *module, PyObject *const *arguments, Py_ssize_t given)
{
    (void)module;
    (void)arguments;
    (void)given;
    return refuse();
}

PyObject *take_synced(PyObject *module, PyObject *const *arguments, Py_ssize_t given)
{
    return submit_sync(module, arguments, given);
}

PyObject *wait_synced(PyObject *module, PyObject *const *arguments, Py_ssize_t given)
{
    return submit_sync(module, arguments, given);
}

PyObject *close_syncs(PyObject *module, PyObject *const *arguments, Py_ssize_t given)
{
    return submit_sync(module, arguments, given);
}

#endif
