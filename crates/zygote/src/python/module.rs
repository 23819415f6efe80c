//! The native part of a warm Python: an extension module declared by hand, so that it needs no headers and
//! works with every Python version that has a global lock.
#![no_std]

mod run_program;

use core::ffi::{c_char, c_int, c_long, c_void};
use core::ptr::{null, null_mut};

use belljar_zygote::message::kind;
use belljar_zygote::{interpreter, syscall};

type Object = *mut c_void;
type Function = unsafe extern "C" fn(Object, Object) -> Object;

/// `PyMethodDef`.
#[repr(C)]
struct MethodDef {
    name: *const c_char,
    function: Option<Function>,
    flags: c_int,
    doc: *const c_char,
}

/// `PyModuleDef`, preceded by the object header.
#[repr(C)]
struct ModuleDef {
    references: isize,
    object_type: Object,
    init: *const c_void,
    index: isize,
    copy: Object,
    name: *const c_char,
    doc: *const c_char,
    size: isize,
    methods: *const MethodDef,
    unused: [*const c_void; 4],
}

struct StaticTable<T>(T);

// SAFETY: Python writes to these only while it holds its global lock.
unsafe impl<T> Sync for StaticTable<T> {}

const ANY_ARGUMENTS: c_int = 1;
const NO_ARGUMENTS: c_int = 4;
const ONE_ARGUMENT: c_int = 8;
const API_VERSION: c_int = 1013;

const fn method(name: *const c_char, function: Function, flags: c_int) -> MethodDef {
    MethodDef { name, function: Some(function), flags, doc: null() }
}

static METHODS: StaticTable<[MethodDef; 11]> = StaticTable([
    method(c"start".as_ptr(), start, NO_ARGUMENTS),
    method(c"module_imported".as_ptr(), module_imported, ONE_ARGUMENT),
    method(c"import_failed".as_ptr(), import_failed, ONE_ARGUMENT),
    method(c"serve_forks".as_ptr(), serve_forks, NO_ARGUMENTS),
    method(c"is_awaited".as_ptr(), is_awaited, NO_ARGUMENTS),
    method(c"await_inspection".as_ptr(), await_inspection, NO_ARGUMENTS),
    method(c"dry_run".as_ptr(), dry_run, ONE_ARGUMENT),
    method(c"await_task".as_ptr(), await_task, NO_ARGUMENTS),
    method(c"run_generator".as_ptr(), run_program::run_generator, ANY_ARGUMENTS),
    method(c"exit".as_ptr(), exit_child, ONE_ARGUMENT),
    MethodDef { name: null(), function: None, flags: 0, doc: null() },
]);

static mut MODULE: ModuleDef = ModuleDef {
    references: 1,
    object_type: null_mut(),
    init: null(),
    index: 0,
    copy: null_mut(),
    name: c"_belljar".as_ptr(),
    doc: null(),
    size: -1,
    methods: METHODS.0.as_ptr(),
    unused: [null(); 4],
};

unsafe extern "C" {
    fn PyModule_Create2(definition: *mut ModuleDef, api_version: c_int) -> Object;
    fn PyOS_BeforeFork();
    fn PyOS_AfterFork_Parent();
    fn PyOS_AfterFork_Child();
    fn PyBytes_FromStringAndSize(bytes: *const u8, len: isize) -> Object;
    fn PyBytes_AsString(object: Object) -> *const u8;
    fn PyBytes_Size(object: Object) -> isize;
    fn PyTuple_New(len: isize) -> Object;
    fn PyTuple_SetItem(tuple: Object, at: isize, item: Object) -> c_int;
    fn PyLong_AsLong(object: Object) -> c_long;
    fn PyLong_FromLong(number: c_long) -> Object;
    fn Py_IncRef(object: Object);
    static mut _Py_NoneStruct: [usize; 2];
}

/// Module initialization, called by `import`.
#[unsafe(no_mangle)]
unsafe extern "C" fn PyInit__belljar() -> Object {
    // SAFETY: the definition has the layout of this API version, and is static.
    unsafe { PyModule_Create2(&raw mut MODULE, API_VERSION) }
}

fn none() -> Object {
    // SAFETY: `None` is never deallocated.
    unsafe {
        let none = (&raw mut _Py_NoneStruct).cast();
        Py_IncRef(none);
        none
    }
}

/// Exits if a call to the launcher failed: without its launcher, a zygote has no purpose.
fn or_exit<T>(answer: syscall::SysResult<T>) -> T {
    answer.unwrap_or_else(|_| interpreter::announce_exit(0))
}

unsafe extern "C" fn start(_module: Object, _nothing: Object) -> Object {
    or_exit(interpreter::start());
    none()
}

unsafe extern "C" fn module_imported(_module: Object, name: Object) -> Object {
    // SAFETY: Python passes an object that stays alive during the call.
    or_exit(interpreter::send_status(kind::IMPORTED, unsafe { bytes(name) }));
    none()
}

unsafe extern "C" fn import_failed(_module: Object, reason: Object) -> Object {
    // SAFETY: Python passes an object that stays alive during the call.
    or_exit(interpreter::send_status(kind::IMPORT_FAILED, unsafe { bytes(reason) }));
    none()
}

unsafe extern "C" fn serve_forks(_module: Object, _nothing: Object) -> Object {
    or_exit(interpreter::send_status(kind::ZYGOTE_READY, &[]));
    // SAFETY: the global lock is held, as these functions require, and they are called in pairs.
    let awaited = or_exit(interpreter::serve_forks(
        || unsafe { PyOS_BeforeFork() },
        || unsafe { PyOS_AfterFork_Parent() },
    ));
    // SAFETY: this is the child, before any Python code has run in it.
    unsafe {
        PyOS_AfterFork_Child();
        PyLong_FromLong(awaited.into())
    }
}

/// Returns whether a run is already waiting for this child.
unsafe extern "C" fn is_awaited(_module: Object, _nothing: Object) -> Object {
    // SAFETY: creates a new integer.
    unsafe { PyLong_FromLong(interpreter::is_awaited().into()) }
}

unsafe extern "C" fn await_inspection(_module: Object, _nothing: Object) -> Object {
    or_exit(interpreter::await_inspection());
    none()
}

unsafe extern "C" fn await_task(_module: Object, _nothing: Object) -> Object {
    let task = interpreter::await_task();
    triple(task.text, task.code, task.arguments)
}

/// Writes to memory that `await_task` and a short program will write to, so that these pages are already
/// copied.
unsafe extern "C" fn dry_run(_module: Object, program: Object) -> Object {
    run_program::dry_run(program);
    triple(&[0; 64], Some(&[0; 64]), None)
}

/// Returns a tuple of three: bytes, and twice bytes or `None`.
fn triple(text: &[u8], code: Option<&[u8]>, arguments: Option<&[u8]>) -> Object {
    let copy = |bytes: &[u8]| {
        // SAFETY: Python copies exactly these bytes.
        unsafe { PyBytes_FromStringAndSize(bytes.as_ptr(), bytes.len() as isize) }
    };
    let items = [copy(text), code.map_or_else(none, copy), arguments.map_or_else(none, copy)];
    // SAFETY: a new tuple of three, each item set once; the tuple takes ownership of the references.
    unsafe {
        let tuple = PyTuple_New(3);
        for (at, item) in (0..).zip(items) {
            PyTuple_SetItem(tuple, at, item);
        }
        tuple
    }
}

unsafe extern "C" fn exit_child(_module: Object, status: Object) -> Object {
    // SAFETY: Python passes an object that stays alive during the call.
    interpreter::announce_exit(unsafe { PyLong_AsLong(status) } as usize)
}

/// Returns the content of a `bytes` object.
///
/// # Safety
/// `object` must be a `bytes` object that outlives the result.
unsafe fn bytes<'a>(object: Object) -> &'a [u8] {
    // SAFETY: for a `bytes` object these return its start and length.
    unsafe { core::slice::from_raw_parts(PyBytes_AsString(object), PyBytes_Size(object) as usize) }
}

#[panic_handler]
fn panic(_info: &core::panic::PanicInfo<'_>) -> ! {
    interpreter::announce_exit(101)
}
