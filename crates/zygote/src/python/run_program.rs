//! Runs a program in a warm Python like the interpreter would: called from C, with no Python frame below it,
//! from its first line to the interpreter's shutdown steps. No Python code of ours runs after the program has
//! started, so neither a stack trace nor a trace function of the program shows any.

use core::ffi::{CStr, c_char, c_int, c_long, c_void};
use core::ptr::null_mut;

use super::Object;
use belljar_zygote::interpreter;
use belljar_zygote::syscall::{number, safe_syscall};

const SIGINT: c_int = 2;
const PRINT_RAW: c_int = 1;
/// Exit status of an interpreter that could not flush its output.
const NOT_FLUSHED: usize = 120;
/// Exit status of an interpreter that was interrupted but could not kill itself with SIGINT.
const INTERRUPTED: usize = 130;

unsafe extern "C" {
    fn Py_IncRef(object: Object);
    fn Py_DecRef(object: Object);
    fn PyDict_GetItem(dict: Object, key: Object) -> Object;
    fn PyDict_GetItemString(dict: Object, key: *const c_char) -> Object;
    fn PyDict_Keys(dict: Object) -> Object;
    fn PyDict_SetItem(dict: Object, key: Object, value: Object) -> c_int;
    fn PyErr_Clear();
    fn PyErr_ExceptionMatches(class: Object) -> c_int;
    fn PyErr_Fetch(class: *mut Object, value: *mut Object, traceback: *mut Object);
    fn PyErr_NormalizeException(class: *mut Object, value: *mut Object, traceback: *mut Object);
    fn PyErr_Print();
    fn PyErr_SetString(class: Object, text: *const c_char);
    fn PyErr_WriteUnraisable(object: Object);
    fn PyEval_EvalCode(code: Object, globals: Object, locals: Object) -> Object;
    fn PyEval_GetFrame() -> Object;
    fn PyException_SetTraceback(exception: Object, traceback: Object) -> c_int;
    fn PyFile_WriteObject(object: Object, file: Object, flags: c_int) -> c_int;
    fn PyImport_GetModuleDict() -> Object;
    fn PyList_GetItem(list: Object, at: isize) -> Object;
    fn PyList_Size(list: Object) -> isize;
    fn PyLong_AsLong(object: Object) -> c_long;
    fn PyModule_GetDict(module: Object) -> Object;
    fn PyOS_setsig(signal: c_int, handler: *const c_void) -> *const c_void;
    fn PyObject_CallFunctionObjArgs(function: Object, ...) -> Object;
    fn PyObject_CallObject(function: Object, arguments: Object) -> Object;
    fn PyObject_GetAttrString(object: Object, name: *const c_char) -> Object;
    fn PyObject_IsTrue(object: Object) -> c_int;
    fn PyObject_Type(object: Object) -> Object;
    fn PySys_GetObject(name: *const c_char) -> Object;
    fn PySys_WriteStderr(format: *const c_char, ...);
    fn PyTuple_GetItem(tuple: Object, at: isize) -> Object;
    fn PyTuple_GetSlice(tuple: Object, low: isize, high: isize) -> Object;
    fn PyTuple_Size(tuple: Object) -> isize;
    fn PyType_IsSubtype(class: Object, other: Object) -> c_int;
    fn PyUnicode_CompareWithASCIIString(text: Object, other: *const c_char) -> c_int;
    static PyExc_KeyboardInterrupt: Object;
    static PyExc_RuntimeError: Object;
    static PyExc_StopIteration: Object;
    static PyExc_SystemExit: Object;
    static mut PyFunction_Type: Class;
    static mut PyLong_Type: Class;
    static mut PyModule_Type: Class;
    static mut PyType_Type: Class;
    static mut PyUnicode_Type: Class;
}

/// A built-in class of the interpreter; only its address is used here.
type Class = [usize; 2];

/// An owned reference to an object.
struct Reference(Object);

impl Reference {
    /// Takes ownership of an object returned by a call; `None` if the call raised an exception.
    fn returned(object: Object) -> Option<Self> {
        (!object.is_null()).then_some(Self(object))
    }

    /// Adds a reference to an object owned by another; `None` for a null pointer.
    ///
    /// # Safety
    /// `object` must be alive, or null.
    unsafe fn borrowed(object: Object) -> Option<Self> {
        // SAFETY: the caller guarantees a live object or null, which `Py_IncRef` ignores.
        unsafe { Py_IncRef(object) };
        Self::returned(object)
    }

    fn none() -> Self {
        Self(super::none())
    }

    fn is_none(&self) -> bool {
        self.0 == Self::none().0
    }

    /// Returns an attribute. For a missing attribute, an exception is set.
    fn attribute(&self, name: &CStr) -> Option<Self> {
        // SAFETY: a live object, and a name that ends in NUL.
        Self::returned(unsafe { PyObject_GetAttrString(self.0, name.as_ptr()) })
    }

    /// Calls the object with a tuple of arguments, or without any.
    fn call(&self, arguments: Option<&Self>) -> Option<Self> {
        let arguments = arguments.map_or(null_mut(), |arguments| arguments.0);
        // SAFETY: live objects; the arguments are a tuple or null.
        Self::returned(unsafe { PyObject_CallObject(self.0, arguments) })
    }

    /// Returns an item of a tuple.
    fn item(&self, at: isize) -> Option<Self> {
        // SAFETY: a live object. The item is borrowed from the tuple; a non-tuple or a missing item gives
        // null.
        unsafe { Self::borrowed(PyTuple_GetItem(self.0, at)) }
    }
}

impl Drop for Reference {
    fn drop(&mut self) {
        // SAFETY: the reference is owned, and dropped once.
        unsafe { Py_DecRef(self.0) };
    }
}

/// Resumes a generator until it returns a program, runs the program, and ends the process. The first of the
/// `arguments` is the generator. The others are an exception's, because the interpreter calls this function
/// as `sys.excepthook`: after a script has ended, with none of its frames left on the stack.
pub(super) unsafe extern "C" fn run_generator(_module: Object, arguments: Object) -> Object {
    // SAFETY: looks up the current frame, and raises an exception if there is one.
    unsafe {
        if !PyEval_GetFrame().is_null() {
            let text = c"a warm interpreter has frames below those of its programs";
            PyErr_SetString(PyExc_RuntimeError, text.as_ptr());
            return null_mut();
        }
    }
    // SAFETY: Python passes an object that stays alive during the call.
    let generator = unsafe { Reference::borrowed(PyTuple_GetItem(arguments, 0)) };
    let Some(program) = generator.and_then(|generator| resume(&generator)) else {
        // SAFETY: an exception is set.
        unsafe { PyErr_Print() };
        interpreter::announce_exit(1)
    };
    run(&program)
}

/// Calls each function that the generator yields with its arguments, and sends back the exception that it
/// raised or `None`. Returns the generator's return value.
fn resume(generator: &Reference) -> Option<Reference> {
    let send = generator.attribute(c"send")?;
    let mut answer = Reference::none();
    loop {
        // SAFETY: live objects, and a null pointer that ends the argument list.
        let yielded = unsafe { PyObject_CallFunctionObjArgs(send.0, answer.0, null_mut::<c_void>()) };
        match Reference::returned(yielded) {
            Some(call) => answer = perform(&call)?,
            None => return generator_return_value(),
        }
    }
}

fn perform(call: &Reference) -> Option<Reference> {
    let function = call.item(0)?;
    // SAFETY: `call` has an item, so it is a tuple.
    let arguments = Reference::returned(unsafe { PyTuple_GetSlice(call.0, 1, PyTuple_Size(call.0)) })?;
    Some(function.call(Some(&arguments)).map_or_else(take_exception, |_result| Reference::none()))
}

/// Takes the current exception, with its traceback attached.
fn take_exception() -> Reference {
    let (mut class, mut value, mut traceback) = (null_mut(), null_mut(), null_mut());
    // SAFETY: Python writes owned references to these variables, or null.
    unsafe {
        PyErr_Fetch(&raw mut class, &raw mut value, &raw mut traceback);
        PyErr_NormalizeException(&raw mut class, &raw mut value, &raw mut traceback);
        if !traceback.is_null() {
            PyException_SetTraceback(value, traceback);
        }
        Py_DecRef(class);
        Py_DecRef(traceback);
    }
    Reference::returned(value).unwrap_or_else(Reference::none)
}

/// Returns the return value of a generator; `None` if it raised an exception, which stays set.
fn generator_return_value() -> Option<Reference> {
    is_raised(&raw const PyExc_StopIteration).then(take_exception)?.attribute(c"value")
}

fn is_raised(class: *const Object) -> bool {
    // SAFETY: a static pointer of the interpreter to one of its classes.
    unsafe { PyErr_ExceptionMatches(*class) != 0 }
}

/// Runs a built-in program like [`run`] would, without ending the process, so that the memory this touches is
/// already copied.
pub(super) fn dry_run(program: Object) {
    // SAFETY: Python passes an object that stays alive during the call.
    let Some(program) = (unsafe { Reference::borrowed(program) }) else { return };
    if execute(&program).is_none() {
        // SAFETY: an exception is set.
        unsafe { PyErr_Print() };
    }
    flush_streams();
    clear_main_module();
}

/// Runs a program, then performs the interpreter's shutdown steps in the same order.
fn run(program: &Reference) -> ! {
    let (mut status, is_interrupted) = match execute(program) {
        Some(_result) => (0, false),
        None => handle_exception(),
    };
    join_threads();
    run_exit_functions(program);
    let flushed = flush_streams();
    clear_main_module();
    if !(flush_streams() && flushed) {
        status = NOT_FLUSHED;
    }
    if is_interrupted {
        die_of_interrupt();
    }
    interpreter::announce_exit(status)
}

/// Executes a program: `(atexit._run_exitfuncs, globals, code)`, or, not compiled yet,
/// `(atexit._run_exitfuncs, globals, compile, arguments)`.
fn execute(program: &Reference) -> Option<Reference> {
    let (globals, code) = (program.item(1)?, program.item(2)?);
    // SAFETY: `program` has items, so it is a tuple.
    let code = match unsafe { PyTuple_Size(program.0) } {
        4 => code.call(Some(&program.item(3)?))?,
        _ => code,
    };
    // SAFETY: a code object, and the variables of a module.
    Reference::returned(unsafe { PyEval_EvalCode(code.0, globals.0, globals.0) })
}

/// Handles the exception that ended the program like the interpreter does. Returns the exit status, and
/// whether the process should die of SIGINT.
fn handle_exception() -> (usize, bool) {
    if is_raised(&raw const PyExc_SystemExit) {
        return (exit_status(), false);
    }
    let is_interrupted = is_raised(&raw const PyExc_KeyboardInterrupt);
    // SAFETY: an exception is set.
    unsafe { PyErr_Print() };
    (if is_interrupted { INTERRUPTED } else { 1 }, is_interrupted)
}

/// Returns the exit status of a `SystemExit`. A code that is not a number is written to standard error.
fn exit_status() -> usize {
    let exception = take_exception();
    let code = exception.attribute(c"code");
    // SAFETY: clears the exception of a missing attribute, if any.
    unsafe { PyErr_Clear() };
    let code = code.unwrap_or(exception);
    if code.is_none() {
        return 0;
    }
    // SAFETY: live objects; a number that is too large gives -1 and sets an exception, which is cleared
    // below.
    unsafe {
        if is_instance(code.0, &raw mut PyLong_Type) {
            let status = PyLong_AsLong(code.0);
            PyErr_Clear();
            return status as usize & 0xff;
        }
        if let Some(stream) = stream(c"stderr") {
            PyFile_WriteObject(code.0, stream.0, PRINT_RAW);
            PyErr_Clear();
        }
        PySys_WriteStderr(c"\n".as_ptr());
    }
    1
}

/// Waits for non-daemon threads, if `threading` was imported.
fn join_threads() {
    let Some(threading) = module(c"threading") else { return };
    let ended = threading.attribute(c"_shutdown").and_then(|shutdown| shutdown.call(None));
    if ended.is_none() {
        // SAFETY: an exception is set.
        unsafe { PyErr_WriteUnraisable(threading.0) };
    }
}

fn run_exit_functions(program: &Reference) {
    if program.item(0).and_then(|run_all| run_all.call(None)).is_none() {
        // SAFETY: the exception has already been printed.
        unsafe { PyErr_Clear() };
    }
}

fn module(name: &CStr) -> Option<Reference> {
    // SAFETY: the interpreter's own dict, from which an item is borrowed.
    unsafe { Reference::borrowed(PyDict_GetItemString(PyImport_GetModuleDict(), name.as_ptr())) }
}

/// Returns a standard stream, unless the program removed it.
fn stream(name: &CStr) -> Option<Reference> {
    // SAFETY: a borrowed object of the interpreter, or null.
    unsafe { Reference::borrowed(PySys_GetObject(name.as_ptr())) }.filter(|stream| !stream.is_none())
}

/// Flushes the standard streams, and returns whether everything was written.
fn flush_streams() -> bool {
    let mut all = true;
    for (name, is_reported) in [(c"stdout", true), (c"stderr", false)] {
        let Some(stream) = stream(name).filter(|stream| !is_closed(stream)) else { continue };
        if stream.attribute(c"flush").and_then(|flush| flush.call(None)).is_some() {
            continue;
        }
        all = false;
        // SAFETY: an exception is set.
        unsafe {
            if is_reported {
                PyErr_WriteUnraisable(stream.0);
            }
            PyErr_Clear();
        }
    }
    all
}

fn is_closed(stream: &Reference) -> bool {
    let closed = stream.attribute(c"closed");
    // SAFETY: a live object; a stream without this attribute counts as open.
    unsafe {
        let closed = closed.is_some_and(|closed| PyObject_IsTrue(closed.0) == 1);
        PyErr_Clear();
        closed
    }
}

/// Clears the program's variables so that destructors run. Definitions, which destructors use most, are
/// cleared last.
fn clear_main_module() {
    let Some(main) = module(c"__main__") else { return };
    // SAFETY: the dict is borrowed from the module; a non-module gives null and an exception.
    let variables = unsafe { Reference::borrowed(PyModule_GetDict(main.0)) };
    if let Some(variables) = variables {
        clear_variables(&variables, false);
        clear_variables(&variables, true);
    }
    // SAFETY: clears the exception of a variable that could not be cleared.
    unsafe { PyErr_Clear() };
}

/// Sets all variables of a module to `None`, or all except functions, classes and modules.
fn clear_variables(variables: &Reference, with_definitions: bool) {
    // SAFETY: a live dict returns a new list of its keys.
    let Some(names) = Reference::returned(unsafe { PyDict_Keys(variables.0) }) else { return };
    let none = Reference::none();
    // SAFETY: names are items of a live list. A value is borrowed from a live dict and used before any other
    // code runs; it is null if a destructor has removed the variable.
    unsafe {
        for at in 0..PyList_Size(names.0) {
            let name = PyList_GetItem(names.0, at);
            let value = PyDict_GetItem(variables.0, name);
            if !value.is_null() && !is_builtins(name) && (with_definitions || !is_definition(value)) {
                PyDict_SetItem(variables.0, name, none.0);
            }
        }
    }
}

/// Returns whether a value is a function, a class or a module.
///
/// # Safety
/// `value` must be alive.
unsafe fn is_definition(value: Object) -> bool {
    let classes = [&raw mut PyFunction_Type, &raw mut PyType_Type, &raw mut PyModule_Type];
    // SAFETY: the caller guarantees a live object.
    classes.into_iter().any(|class| unsafe { is_instance(value, class) })
}

/// Returns whether a variable is `__builtins__`, which functions need to find built-in names.
///
/// # Safety
/// `name` must be alive.
unsafe fn is_builtins(name: Object) -> bool {
    // SAFETY: the comparison requires a string, which is checked first.
    unsafe {
        is_instance(name, &raw mut PyUnicode_Type)
            && PyUnicode_CompareWithASCIIString(name, c"__builtins__".as_ptr()) == 0
    }
}

/// Returns whether an object is an instance of a class, without asking the object, which would run the
/// program's code.
///
/// # Safety
/// `object` must be alive.
unsafe fn is_instance(object: Object, class: *mut Class) -> bool {
    // SAFETY: every object has a class, and the interpreter's built-in classes are static.
    unsafe {
        Reference::returned(PyObject_Type(object))
            .is_some_and(|own| PyType_IsSubtype(own.0, class.cast()) == 1)
    }
}

/// Kills this process with SIGINT, so that its parent can tell that it was interrupted.
fn die_of_interrupt() {
    // SAFETY: a null pointer is the default action.
    unsafe { PyOS_setsig(SIGINT, null_mut()) };
    // If the signal does not kill it, the process exits with a status.
    if let Ok(pid) = safe_syscall(number::GETPID, &[]) {
        let _sent = safe_syscall(number::KILL, &[pid, SIGINT as usize]);
    }
}
