//! The program's own process, from the fork to `execve`.

use std::ffi::CString;
use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use super::{Cell, Told, landlock, place_at, rights, tell};
use crate::fault;
use crate::payload::Payload;
use crate::spec::{INNER_UID, Layer, Place, WORKSPACE};
use crate::step::{Step, StepFailed, step};
use crate::sys;

/// Becomes a command of the jail; never comes back. `park` holds it, fully confined, until its turn.
pub(super) fn become_command(cell: &Cell<'_>, payload: &Payload, index: usize, park: Option<OwnedFd>) -> ! {
    let failed = match confine(cell, payload, index) {
        Ok(()) => {
            if park.is_some_and(|park| super::await_byte(&park).is_err()) {
                sys::exit_now(1);
            }
            execute(cell, index)
        }
        Err(failed) => failed,
    };
    tell(&cell.report, &Told::Failed(failed));
    sys::exit_now(1)
}

fn confine(cell: &Cell<'_>, payload: &Payload, index: usize) -> Result<(), StepFailed> {
    step(Step::Stdio, "", || stdio(cell))?;
    step(Step::Rlimits, "", || rlimits(cell))?;
    step(Step::Ids, "", || rights::become_user(INNER_UID, INNER_UID))?;
    // ── below this line we are nobody ──
    if index == 0 {
        files(payload)?;
    }
    step(Step::Workdir, &cell.jail.workdir, || rustix::process::chdir(cell.jail.workdir.as_str()))?;
    step(Step::Capabilities, "", rights::drop_capabilities)?;
    step(Step::NoNewPrivs, "", rights::forbid_new_privileges)?;
    if cell.landlock && !fault::without(Layer::Landlock) {
        step(Step::Landlock, "", || landlock::apply(cell.jail))?;
    }
    // Last: the filter would forbid the steps above.
    step(Step::Seccomp, "", || {
        if fault::without(Layer::Seccomp) {
            return Ok(());
        }
        cell.filter.install().map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::INVAL))
    })
}

/// A session of its own, descriptors 0 to 2 (and 3 for a result), and nothing else beyond `execve`.
fn stdio(cell: &Cell<'_>) -> Result<(), Errno> {
    rustix::process::setsid()?;
    sys::default_signals();
    rustix::process::umask(Mode::from_raw_mode(0o022));
    let given = &cell.descriptors;
    place_at(&given.stdin, 0)?;
    place_at(&given.stdout, 1)?;
    place_at(&given.stderr, 2)?;
    let mut first_closed = 3;
    if let Some(result) = &given.result {
        place_at(result, 3)?;
        first_closed = 4;
    }
    close_on_exec_from(first_closed)
}

fn close_on_exec_from(first: u32) -> Result<(), Errno> {
    // SAFETY: only marks descriptors; none is closed before `execve`.
    let result = unsafe { libc::syscall(libc::SYS_close_range, first, u32::MAX, libc::CLOSE_RANGE_CLOEXEC) };
    if result == 0 { Ok(()) } else { Err(Errno::BADF) }
}

fn rlimits(cell: &Cell<'_>) -> Result<(), Errno> {
    if fault::without(Layer::Rlimits) {
        return Ok(());
    }
    let limits = &cell.jail.limits;
    let processes = u64::from(limits.processes) + 1;
    for (resource, soft, hard) in [
        (libc::RLIMIT_CORE, 0, 0),
        (libc::RLIMIT_NOFILE, limits.open_files, limits.open_files),
        (libc::RLIMIT_FSIZE, limits.disk_bytes, limits.disk_bytes),
        (libc::RLIMIT_NPROC, processes, processes),
        (libc::RLIMIT_MEMLOCK, 64 << 10, 64 << 10),
        (libc::RLIMIT_STACK, 8 << 20, 64 << 20),
        (libc::RLIMIT_SIGPENDING, 1_024, 1_024),
        (libc::RLIMIT_MSGQUEUE, 0, 0),
        (libc::RLIMIT_NICE, 0, 0),
        (libc::RLIMIT_RTPRIO, 0, 0),
    ] {
        sys::limit(resource, soft, hard)?;
    }
    // Without a control group this holds each process, not the group, so no receipt counts it. It is private data
    // and not address space, because many runtimes reserve far more of that than they use.
    match cell.data_limit {
        Some(bytes) => sys::limit(libc::RLIMIT_DATA, bytes, bytes),
        None => Ok(()),
    }
}

fn files(payload: &Payload) -> Result<(), StepFailed> {
    let folder = step(Step::Files, "", || {
        rustix::fs::open(WORKSPACE, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
    })?;
    payload
        .unpack(Place::Workspace, folder.as_fd())
        .map_err(|(path, errno)| StepFailed::new(Step::Files, path, errno))
}

/// Looks the program up as a shell would and executes it; comes back only with the reason why not.
fn execute(cell: &Cell<'_>, index: usize) -> StepFailed {
    let command = &cell.jail.commands[index];
    let name = command.first().map_or("", String::as_str);
    let failed = |errno| StepFailed::new(Step::Exec, name, errno);
    if let Err(errno) = fault::inject(Step::Exec) {
        return failed(errno);
    }
    let strings = |texts: &[String]| -> Option<Vec<CString>> {
        texts.iter().map(|text| CString::new(text.as_bytes()).ok()).collect()
    };
    let (Some(arguments), Some(env)) = (strings(command), strings(&cell.jail.env)) else {
        return failed(Errno::INVAL);
    };
    let pointers = |strings: &[CString]| -> Vec<*const libc::c_char> {
        strings.iter().map(|s| s.as_ptr()).chain([std::ptr::null()]).collect()
    };
    let (argv, envp) = (pointers(&arguments), pointers(&env));
    let path = cell.jail.env.iter().find_map(|entry| entry.strip_prefix("PATH=")).unwrap_or("/usr/bin:/bin");
    let mut answer = Errno::NOENT;
    for candidate in candidates(name, path) {
        let errno = sys::execve(&candidate, &argv, &envp);
        if !matches!(errno, Errno::NOENT | Errno::NOTDIR) {
            answer = errno;
        }
    }
    failed(answer)
}

fn candidates(name: &str, path: &str) -> Vec<CString> {
    if name.contains('/') {
        return CString::new(name).into_iter().collect();
    }
    path.split(':').filter_map(|folder| CString::new(format!("{folder}/{name}")).ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_are_looked_up_as_a_shell_would() {
        assert_eq!(candidates("./a", "/bin"), [c"./a".to_owned()]);
        assert_eq!(candidates("ls", "/usr/bin:/bin"), [c"/usr/bin/ls".to_owned(), c"/bin/ls".to_owned()]);
    }
}
