//! The part of a warm Python that is not Python: an extension module, made by hand so that it needs no header and fits every
//! version with a global lock.
#![no_std]

mod born;
mod call;
mod hop;
mod message;
mod payload;
mod python_run;
mod rights;
mod seccomp;
mod socket;
mod vfork;
mod zygote;

use core::ffi::{c_char, c_int, c_long, c_void};
use core::ptr::{null, null_mut};

use message::kind;

type Object = *mut c_void;
type Function = unsafe extern "C" fn(Object, Object) -> Object;

/// `PyMethodDef`.
#[repr(C)]
struct Method {
    name: *const c_char,
    function: Option<Function>,
    flags: c_int,
    doc: *const c_char,
}

/// `PyModuleDef`, with the head of an object in front.
#[repr(C)]
struct Definition {
    references: isize,
    object_type: Object,
    init: *const c_void,
    index: isize,
    copy: Object,
    name: *const c_char,
    doc: *const c_char,
    size: isize,
    methods: *const Method,
    unused: [*const c_void; 4],
}

struct Fixed<T>(T);

// SAFETY: Python writes to these while it holds its lock, and nobody else does.
unsafe impl<T> Sync for Fixed<T> {}

const ANY_ARGUMENTS: c_int = 1;
const NO_ARGUMENTS: c_int = 4;
const ONE_ARGUMENT: c_int = 8;
const API_VERSION: c_int = 1013;

const fn method(name: *const c_char, function: Function, flags: c_int) -> Method {
    Method { name, function: Some(function), flags, doc: null() }
}

static METHODS: Fixed<[Method; 11]> = Fixed([
    method(c"begin".as_ptr(), begin, NO_ARGUMENTS),
    method(c"imported".as_ptr(), imported, ONE_ARGUMENT),
    method(c"refused".as_ptr(), refused, ONE_ARGUMENT),
    method(c"have_children".as_ptr(), have_children, NO_ARGUMENTS),
    method(c"is_awaited".as_ptr(), is_awaited, NO_ARGUMENTS),
    method(c"await_inspection".as_ptr(), await_inspection, NO_ARGUMENTS),
    method(c"rehearse".as_ptr(), rehearse, ONE_ARGUMENT),
    method(c"await_task".as_ptr(), await_task, NO_ARGUMENTS),
    method(c"drive".as_ptr(), python_run::drive, ANY_ARGUMENTS),
    method(c"leave".as_ptr(), leave, ONE_ARGUMENT),
    Method { name: null(), function: None, flags: 0, doc: null() },
]);

static mut DEFINITION: Definition = Definition {
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
    fn PyModule_Create2(definition: *mut Definition, api_version: c_int) -> Object;
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

/// Called by `import`.
#[unsafe(no_mangle)]
unsafe extern "C" fn PyInit__belljar() -> Object {
    // SAFETY: the definition is laid out as this version of the interface wants it, and lives for ever.
    unsafe { PyModule_Create2(&raw mut DEFINITION, API_VERSION) }
}

fn none() -> Object {
    // SAFETY: `None` is an object for ever.
    unsafe {
        let none = (&raw mut _Py_NoneStruct).cast();
        Py_IncRef(none);
        none
    }
}

/// A zygote whose launcher is gone has no reason to go on.
fn or_end<T>(answer: call::Answer<T>) -> T {
    answer.unwrap_or_else(|_| zygote::leave(0))
}

unsafe extern "C" fn begin(_module: Object, _nothing: Object) -> Object {
    or_end(zygote::begin());
    none()
}

unsafe extern "C" fn imported(_module: Object, name: Object) -> Object {
    // SAFETY: Python passes an object that it holds on to during the call.
    or_end(zygote::say(kind::IMPORTED, unsafe { bytes(name) }));
    none()
}

unsafe extern "C" fn refused(_module: Object, reason: Object) -> Object {
    // SAFETY: as above.
    or_end(zygote::say(kind::REFUSED, unsafe { bytes(reason) }));
    none()
}

unsafe extern "C" fn have_children(_module: Object, _nothing: Object) -> Object {
    or_end(zygote::say(kind::FERTILE, &[]));
    // SAFETY: called with Python's lock held, as these want it, and in pairs.
    let awaited =
        or_end(zygote::have_children(|| unsafe { PyOS_BeforeFork() }, || unsafe { PyOS_AfterFork_Parent() }));
    // SAFETY: this is the child, and no Python code has run in it yet.
    unsafe {
        PyOS_AfterFork_Child();
        PyLong_FromLong(awaited.into())
    }
}

/// Whether a request waits for this child.
unsafe extern "C" fn is_awaited(_module: Object, _nothing: Object) -> Object {
    // SAFETY: makes a new number.
    unsafe { PyLong_FromLong(zygote::is_awaited().into()) }
}

unsafe extern "C" fn await_inspection(_module: Object, _nothing: Object) -> Object {
    or_end(zygote::await_inspection());
    none()
}

unsafe extern "C" fn await_task(_module: Object, _nothing: Object) -> Object {
    let task = zygote::await_task();
    triple(task.text, task.code, task.arguments)
}

/// Writes to memory that `await_task` and a short program will write to.
unsafe extern "C" fn rehearse(_module: Object, program: Object) -> Object {
    python_run::rehearse(program);
    triple(&[0; 64], Some(&[0; 64]), None)
}

/// A tuple of three: bytes, and twice bytes or nothing.
fn triple(text: &[u8], code: Option<&[u8]>, arguments: Option<&[u8]>) -> Object {
    let copy = |bytes: &[u8]| {
        // SAFETY: Python copies that many bytes.
        unsafe { PyBytes_FromStringAndSize(bytes.as_ptr(), bytes.len() as isize) }
    };
    let items = [copy(text), code.map_or_else(none, copy), arguments.map_or_else(none, copy)];
    // SAFETY: a new tuple of three, each of which is set once; the tuple takes the references over.
    unsafe {
        let tuple = PyTuple_New(3);
        for (at, item) in (0..).zip(items) {
            PyTuple_SetItem(tuple, at, item);
        }
        tuple
    }
}

unsafe extern "C" fn leave(_module: Object, status: Object) -> Object {
    // SAFETY: Python passes an object that it holds on to during the call.
    zygote::leave(unsafe { PyLong_AsLong(status) } as usize)
}

/// The content of a `bytes` object.
///
/// # Safety
/// `object` must be one, and outlive the result.
unsafe fn bytes<'a>(object: Object) -> &'a [u8] {
    // SAFETY: that is what these give for a `bytes` object.
    unsafe { core::slice::from_raw_parts(PyBytes_AsString(object), PyBytes_Size(object) as usize) }
}

#[panic_handler]
fn panic(_info: &core::panic::PanicInfo<'_>) -> ! {
    zygote::leave(101)
}
