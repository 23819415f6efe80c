//! The part of a warm Node.js that is not JavaScript: an addon, which is also loaded before every other library, because a few
//! functions of the C library must know that this process is a fork.
//!
//! Who wants to know of forks is told of ours, which are not the C library's. Node.js has threads that only wait for work which a single-threaded V8 never gives them. A fork does not have them, so
//! nobody may wait for their end; and a fork leaves at once, where Node.js would take its time.
#![no_std]

mod born;
mod call;
mod hop;
mod message;
mod payload;
mod rights;
mod seccomp;
mod socket;
mod vfork;
mod zygote;

use core::ffi::{c_char, c_int, c_void};
use core::ptr::{null_mut, without_provenance_mut};
use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use message::kind;

type Pointer = *mut c_void;
type Callback = unsafe extern "C" fn(Pointer, Pointer) -> Pointer;

unsafe extern "C" {
    fn napi_create_function(
        env: Pointer,
        name: *const c_char,
        len: usize,
        callback: Callback,
        data: Pointer,
        made: *mut Pointer,
    ) -> c_int;
    fn napi_set_named_property(env: Pointer, object: Pointer, name: *const c_char, value: Pointer) -> c_int;
    fn napi_get_cb_info(
        env: Pointer,
        info: Pointer,
        count: *mut usize,
        arguments: *mut Pointer,
        this: *mut Pointer,
        data: *mut Pointer,
    ) -> c_int;
    fn napi_get_value_int32(env: Pointer, value: Pointer, number: *mut c_int) -> c_int;
    fn napi_create_string_utf8(env: Pointer, text: *const u8, len: usize, made: *mut Pointer) -> c_int;
    fn napi_create_int32(env: Pointer, number: c_int, made: *mut Pointer) -> c_int;
    fn napi_create_array(env: Pointer, made: *mut Pointer) -> c_int;
    fn napi_set_element(env: Pointer, array: Pointer, at: u32, value: Pointer) -> c_int;
    fn napi_get_uv_event_loop(env: Pointer, found: *mut Pointer) -> c_int;
    fn uv_loop_fork(event_loop: Pointer) -> c_int;
    fn dlsym(library: Pointer, name: *const c_char) -> Pointer;
}

/// Called when the addon is loaded.
#[unsafe(no_mangle)]
unsafe extern "C" fn napi_register_module_v1(env: Pointer, exports: Pointer) -> Pointer {
    let functions: [(&core::ffi::CStr, Callback); 6] = [
        (c"begin", begin),
        (c"haveChildren", have_children),
        (c"pid", pid),
        (c"awaitTask", await_task),
        (c"failWith", fail_with),
        (c"leave", leave),
    ];
    for (name, callback) in functions {
        let mut made = null_mut();
        let name_len = name.count_bytes();
        // SAFETY: the environment is the one that this call was made with; names and functions live for ever.
        unsafe {
            napi_create_function(env, name.as_ptr(), name_len, callback, null_mut(), &raw mut made);
            napi_set_named_property(env, exports, name.as_ptr(), made);
        }
    }
    exports
}

/// A zygote whose launcher is gone has no reason to go on.
fn or_end<T>(answer: call::Answer<T>) -> T {
    answer.unwrap_or_else(|_| zygote::leave(0))
}

unsafe extern "C" fn begin(_env: Pointer, _info: Pointer) -> Pointer {
    or_end(zygote::begin());
    null_mut()
}

/// V8 keeps its memory out of forks, so that is undone before each.
fn share_memory() {
    const MADV_DOFORK: usize = 11;
    const LOWEST: usize = 0x1_0000;
    const END: usize = 0x7fff_ffff_0000;
    // Holes, and what belongs to the kernel at the very end, are reported as errors; the rest is done all the same.
    let _done = call::plain(call::number::MADVISE, &[LOWEST, END - LOWEST, MADV_DOFORK]);
}

/// Descriptors that Node.js has for its own purposes, a bit for each number.
fn own_descriptors() -> u64 {
    const F_GETFD: usize = 1;
    let open = |number: &usize| call::plain(call::number::FCNTL, &[*number, F_GETFD]).is_ok();
    (message::LINE as usize + 1..64).filter(open).fold(0, |all, number| all | 1 << number)
}

/// A child has none of these any more. What belonged to its one thread it makes anew; for the rest, of which only the end
/// of the process would remind it, something of its own stands that can be written to and that nobody looks at.
fn stand_in_for(descriptors: u64) -> call::Answer<()> {
    const NONBLOCKING_CLOSED_ON_EXEC: usize = 0o2_004_000;
    const O_CLOEXEC: usize = 0o2_000_000;
    for number in (0..64).filter(|number| descriptors >> number & 1 == 1) {
        let one = call::plain(call::number::EVENTFD, &[0, NONBLOCKING_CLOSED_ON_EXEC])?;
        if one != number {
            call::plain(call::number::DUP3, &[one, number, O_CLOEXEC])?;
            call::close(one as i32);
        }
    }
    Ok(())
}

unsafe extern "C" fn have_children(env: Pointer, _info: Pointer) -> Pointer {
    let descriptors = own_descriptors();
    or_end(zygote::say(kind::FERTILE, &[]));
    let awaited = or_end(zygote::have_children(share_memory, || {}));
    FORKED.store(true, Ordering::Relaxed);
    or_end(stand_in_for(descriptors));
    for handler in HANDLERS.iter().map(|slot| slot.load(Ordering::Relaxed)).take_while(|handler| *handler != 0) {
        // SAFETY: that is what was registered to be called in the child of a fork.
        unsafe { core::mem::transmute::<usize, extern "C" fn()>(handler)() };
    }
    let mut event_loop = null_mut();
    // SAFETY: this is the child, in which no event was waited for yet; the loop is the one of this environment.
    let renewed = unsafe {
        napi_get_uv_event_loop(env, &raw mut event_loop);
        uv_loop_fork(event_loop)
    };
    if renewed != 0 {
        zygote::leave(101);
    }
    let mut answer = null_mut();
    // SAFETY: a new number.
    unsafe { napi_create_int32(env, awaited.into(), &raw mut answer) };
    answer
}

unsafe extern "C" fn await_task(env: Pointer, _info: Pointer) -> Pointer {
    let task = zygote::await_task();
    let text = |bytes: &[u8]| {
        let mut made = null_mut();
        // SAFETY: the bytes are copied.
        unsafe { napi_create_string_utf8(env, bytes.as_ptr(), bytes.len(), &raw mut made) };
        made
    };
    let mut array = null_mut();
    // SAFETY: a new array, of which one or two elements are set.
    unsafe {
        napi_create_array(env, &raw mut array);
        napi_set_element(env, array, 0, text(task.text));
        if let Some(arguments) = task.arguments {
            napi_set_element(env, array, 1, text(arguments));
        }
    }
    array
}

/// Node.js remembers the number that its zygote had.
unsafe extern "C" fn pid(env: Pointer, _info: Pointer) -> Pointer {
    let mut number = null_mut();
    // SAFETY: a new number.
    unsafe { napi_create_int32(env, zygote::pid() as c_int, &raw mut number) };
    number
}

unsafe extern "C" fn leave(env: Pointer, info: Pointer) -> Pointer {
    // SAFETY: these are of the present call.
    zygote::leave(unsafe { number(env, info) } as usize)
}

/// The exit status after an exception that nobody caught.
unsafe extern "C" fn fail_with(env: Pointer, info: Pointer) -> Pointer {
    // SAFETY: these are of the present call.
    STATUS.store(unsafe { number(env, info) } as usize, Ordering::Relaxed);
    null_mut()
}

/// The one argument that was given; 0 where it is no number.
///
/// # Safety
/// `env` and `info` must be those of the present call.
unsafe fn number(env: Pointer, info: Pointer) -> c_int {
    let (mut count, mut argument, mut number) = (1, null_mut(), 0);
    // SAFETY: there is room for one argument; what is no number leaves the number as it is.
    unsafe {
        napi_get_cb_info(env, info, &raw mut count, &raw mut argument, null_mut(), null_mut());
        napi_get_value_int32(env, argument, &raw mut number);
    }
    number
}

static STATUS: AtomicUsize = AtomicUsize::new(1);
/// Whether this process is a child.
static FORKED: AtomicBool = AtomicBool::new(false);
/// Threads that were started before.
static THREADS: [AtomicUsize; 64] = [const { AtomicUsize::new(0) }; 64];

/// What is to be called in the child of a fork, in the order in which it was registered.
static HANDLERS: [AtomicUsize; 64] = [const { AtomicUsize::new(0) }; 64];

/// What `pthread_atfork` comes down to.
#[unsafe(no_mangle)]
unsafe extern "C" fn __register_atfork(before: Pointer, after: Pointer, child: usize, library: Pointer) -> c_int {
    type Register = unsafe extern "C" fn(Pointer, Pointer, usize, Pointer) -> c_int;
    remember(&HANDLERS, child);
    // SAFETY: the arguments go on as they came.
    unsafe { next::<Register>(c"__register_atfork")(before, after, child, library) }
}

/// Keeps a number in the first free place. There is one thread when this matters.
fn remember(places: &[AtomicUsize], number: usize) {
    let free = places.iter().find(|slot| slot.load(Ordering::Relaxed) == 0);
    free.into_iter().for_each(|slot| slot.store(number, Ordering::Relaxed));
}

/// The next library's function of that name.
///
/// # Safety
/// `F` must be its type.
unsafe fn next<F: Copy>(name: &core::ffi::CStr) -> F {
    const RTLD_NEXT: Pointer = without_provenance_mut(usize::MAX);
    // SAFETY: the C library has every function that is asked for here; the caller vouches for the type.
    unsafe { core::mem::transmute_copy(&dlsym(RTLD_NEXT, name.as_ptr())) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn pthread_create(thread: *mut usize, how: Pointer, start: Pointer, argument: Pointer) -> c_int {
    type Create = unsafe extern "C" fn(*mut usize, Pointer, Pointer, Pointer) -> c_int;
    // SAFETY: the arguments go on as they came.
    let (made, number) = unsafe {
        let made = next::<Create>(c"pthread_create")(thread, how, start, argument);
        (made, *thread)
    };
    if made == 0 && !FORKED.load(Ordering::Relaxed) {
        remember(&THREADS, number);
    }
    made
}

#[unsafe(no_mangle)]
unsafe extern "C" fn pthread_join(thread: usize, result: Pointer) -> c_int {
    type Join = unsafe extern "C" fn(usize, Pointer) -> c_int;
    let left_behind = THREADS.iter().any(|slot| slot.load(Ordering::Relaxed) == thread);
    // Nobody waits for them but at the end of the process, after an exception that nobody caught.
    if FORKED.load(Ordering::Relaxed) && left_behind {
        zygote::leave(STATUS.load(Ordering::Relaxed));
    }
    // SAFETY: the arguments go on as they came.
    unsafe { next::<Join>(c"pthread_join")(thread, result) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn exit(status: c_int) -> ! {
    type Exit = unsafe extern "C" fn(c_int) -> !;
    if FORKED.load(Ordering::Relaxed) {
        zygote::leave(status as usize);
    }
    // SAFETY: the argument goes on as it came.
    unsafe { next::<Exit>(c"exit")(status) }
}

#[panic_handler]
fn panic(_info: &core::panic::PanicInfo<'_>) -> ! {
    zygote::leave(101)
}
