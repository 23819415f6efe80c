//! The native part of a warm Node.js: an addon that is also preloaded before every other library, because a
//! few libc functions must behave differently in a forked process.
//!
//! Handlers registered with `pthread_atfork` are called for our forks, which do not go through libc. Node.js
//! has worker threads that a single-threaded V8 never gives any work. A fork does not have these threads, so
//! it must never wait for them to end; and it exits immediately, where Node.js would take its time.
#![no_std]

use core::ffi::{c_char, c_int, c_void};
use core::ptr::{null_mut, without_provenance_mut};
use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use belljar_zygote::message::kind;
use belljar_zygote::{interpreter, message, syscall};

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

/// Addon initialization, called when it is loaded.
#[unsafe(no_mangle)]
unsafe extern "C" fn napi_register_module_v1(env: Pointer, exports: Pointer) -> Pointer {
    let functions: [(&core::ffi::CStr, Callback); 6] = [
        (c"start", start),
        (c"serveForks", serve_forks),
        (c"pid", pid),
        (c"awaitTask", await_task),
        (c"setFailureStatus", set_failure_status),
        (c"exit", exit_child),
    ];
    for (name, callback) in functions {
        let mut made = null_mut();
        let name_len = name.count_bytes();
        // SAFETY: the environment is that of the current call; names and functions are static.
        unsafe {
            napi_create_function(env, name.as_ptr(), name_len, callback, null_mut(), &raw mut made);
            napi_set_named_property(env, exports, name.as_ptr(), made);
        }
    }
    exports
}

/// Exits if a call to the launcher failed: without its launcher, a zygote has no purpose.
fn or_exit<T>(answer: syscall::SysResult<T>) -> T {
    answer.unwrap_or_else(|_| interpreter::announce_exit(0))
}

unsafe extern "C" fn start(_env: Pointer, _info: Pointer) -> Pointer {
    or_exit(interpreter::start());
    null_mut()
}

/// Undoes V8's exclusion of its memory from forks; called before each fork.
fn include_memory_in_forks() {
    const MADV_DOFORK: usize = 11;
    const LOWEST: usize = 0x1_0000;
    const END: usize = 0x7fff_ffff_0000;
    // Unmapped ranges and the kernel's mappings at the end are reported as errors, but the rest is still
    // processed.
    let _done = syscall::safe_syscall(syscall::number::MADVISE, &[LOWEST, END - LOWEST, MADV_DOFORK]);
}

/// Returns the descriptors that Node.js uses internally, one bit per number.
fn internal_descriptors() -> u64 {
    const F_GETFD: usize = 1;
    let open = |number: &usize| syscall::safe_syscall(syscall::number::FCNTL, &[*number, F_GETFD]).is_ok();
    (message::LAUNCHER_FD as usize + 1..64).filter(open).fold(0, |all, number| all | 1 << number)
}

/// Replaces the descriptors that a child no longer has. Node.js recreates those of its main thread; the
/// others, which it uses again only when the process ends, are replaced by eventfds that can be written to
/// and are never read.
fn replace_descriptors(descriptors: u64) -> syscall::SysResult<()> {
    const NONBLOCKING_CLOSED_ON_EXEC: usize = 0o2_004_000;
    const O_CLOEXEC: usize = 0o2_000_000;
    for number in (0..64).filter(|number| descriptors >> number & 1 == 1) {
        let one = syscall::safe_syscall(syscall::number::EVENTFD, &[0, NONBLOCKING_CLOSED_ON_EXEC])?;
        if one != number {
            syscall::safe_syscall(syscall::number::DUP3, &[one, number, O_CLOEXEC])?;
            syscall::close(one as i32);
        }
    }
    Ok(())
}

unsafe extern "C" fn serve_forks(env: Pointer, _info: Pointer) -> Pointer {
    let descriptors = internal_descriptors();
    or_exit(interpreter::send_status(kind::ZYGOTE_READY, &[]));
    let awaited = or_exit(interpreter::serve_forks(include_memory_in_forks, || {}));
    FORKED.store(true, Ordering::Relaxed);
    or_exit(replace_descriptors(descriptors));
    for handler in
        HANDLERS.iter().map(|slot| slot.load(Ordering::Relaxed)).take_while(|handler| *handler != 0)
    {
        // SAFETY: the handler was registered to be called in the child of a fork.
        unsafe { core::mem::transmute::<usize, extern "C" fn()>(handler)() };
    }
    let mut event_loop = null_mut();
    // SAFETY: this is the child, before it has waited for any event; the loop belongs to this environment.
    let renewed = unsafe {
        napi_get_uv_event_loop(env, &raw mut event_loop);
        uv_loop_fork(event_loop)
    };
    if renewed != 0 {
        interpreter::announce_exit(101);
    }
    let mut answer = null_mut();
    // SAFETY: creates a new number.
    unsafe { napi_create_int32(env, awaited.into(), &raw mut answer) };
    answer
}

unsafe extern "C" fn await_task(env: Pointer, _info: Pointer) -> Pointer {
    let task = interpreter::await_task();
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

/// Returns the process id; Node.js still has the one of its zygote.
unsafe extern "C" fn pid(env: Pointer, _info: Pointer) -> Pointer {
    let mut number = null_mut();
    // SAFETY: creates a new number.
    unsafe { napi_create_int32(env, interpreter::pid() as c_int, &raw mut number) };
    number
}

unsafe extern "C" fn exit_child(env: Pointer, info: Pointer) -> Pointer {
    // SAFETY: both belong to the current call.
    interpreter::announce_exit(unsafe { number(env, info) } as usize)
}

/// Sets the exit status after an uncaught exception.
unsafe extern "C" fn set_failure_status(env: Pointer, info: Pointer) -> Pointer {
    // SAFETY: both belong to the current call.
    STATUS.store(unsafe { number(env, info) } as usize, Ordering::Relaxed);
    null_mut()
}

/// Returns the first argument; 0 if it is not a number.
///
/// # Safety
/// `env` and `info` must be those of the current call.
unsafe fn number(env: Pointer, info: Pointer) -> c_int {
    let (mut count, mut argument, mut number) = (1, null_mut(), 0);
    // SAFETY: there is room for one argument; a value that is not a number leaves `number` unchanged.
    unsafe {
        napi_get_cb_info(env, info, &raw mut count, &raw mut argument, null_mut(), null_mut());
        napi_get_value_int32(env, argument, &raw mut number);
    }
    number
}

static STATUS: AtomicUsize = AtomicUsize::new(1);
/// Whether this process is a child of the zygote.
static FORKED: AtomicBool = AtomicBool::new(false);
/// Threads that were started before the fork.
static THREADS: [AtomicUsize; 64] = [const { AtomicUsize::new(0) }; 64];

/// Handlers to call in the child of a fork, in registration order.
static HANDLERS: [AtomicUsize; 64] = [const { AtomicUsize::new(0) }; 64];

/// Records `pthread_atfork` handlers, which libc registers through this function.
#[unsafe(no_mangle)]
unsafe extern "C" fn __register_atfork(
    before: Pointer,
    after: Pointer,
    child: usize,
    library: Pointer,
) -> c_int {
    type Register = unsafe extern "C" fn(Pointer, Pointer, usize, Pointer) -> c_int;
    store_in_free_slot(&HANDLERS, child);
    // SAFETY: the arguments are passed on unchanged.
    unsafe { next::<Register>(c"__register_atfork")(before, after, child, library) }
}

/// Stores a number in the first free slot. While this matters there is only one thread.
fn store_in_free_slot(slots: &[AtomicUsize], number: usize) {
    let free = slots.iter().find(|slot| slot.load(Ordering::Relaxed) == 0);
    free.into_iter().for_each(|slot| slot.store(number, Ordering::Relaxed));
}

/// Returns the next library's definition of a function.
///
/// # Safety
/// `F` must be the type of the function.
unsafe fn next<F: Copy>(name: &core::ffi::CStr) -> F {
    const RTLD_NEXT: Pointer = without_provenance_mut(usize::MAX);
    // SAFETY: libc has every function requested here; the caller guarantees the type.
    unsafe { core::mem::transmute_copy(&dlsym(RTLD_NEXT, name.as_ptr())) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn pthread_create(
    thread: *mut usize,
    how: Pointer,
    start: Pointer,
    argument: Pointer,
) -> c_int {
    type Create = unsafe extern "C" fn(*mut usize, Pointer, Pointer, Pointer) -> c_int;
    // SAFETY: the arguments are passed on unchanged.
    let (made, number) = unsafe {
        let made = next::<Create>(c"pthread_create")(thread, how, start, argument);
        (made, *thread)
    };
    if made == 0 && !FORKED.load(Ordering::Relaxed) {
        store_in_free_slot(&THREADS, number);
    }
    made
}

#[unsafe(no_mangle)]
unsafe extern "C" fn pthread_join(thread: usize, result: Pointer) -> c_int {
    type Join = unsafe extern "C" fn(usize, Pointer) -> c_int;
    let left_behind = THREADS.iter().any(|slot| slot.load(Ordering::Relaxed) == thread);
    // Node.js joins these threads only when the process ends after an uncaught exception.
    if FORKED.load(Ordering::Relaxed) && left_behind {
        interpreter::announce_exit(STATUS.load(Ordering::Relaxed));
    }
    // SAFETY: the arguments are passed on unchanged.
    unsafe { next::<Join>(c"pthread_join")(thread, result) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn exit(status: c_int) -> ! {
    type Exit = unsafe extern "C" fn(c_int) -> !;
    if FORKED.load(Ordering::Relaxed) {
        interpreter::announce_exit(status as usize);
    }
    // SAFETY: the argument is passed on unchanged.
    unsafe { next::<Exit>(c"exit")(status) }
}

#[panic_handler]
fn panic(_info: &core::panic::PanicInfo<'_>) -> ! {
    interpreter::announce_exit(101)
}
