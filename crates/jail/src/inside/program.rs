//! The process of a command, from the fork to `execve`.

use std::ffi::CString;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use super::{Shell, Told, landlock, mounts, place_at, rights, tell};
use crate::bare::errno;
use crate::bare::payload::{Payload, Unwritten};
use crate::fault;
use crate::seccomp::Filter;
use crate::spec::{INNER_UID, Jail, Layer, Place, WORKSPACE};
use crate::step::{Step, StepFailed, step};
use crate::sys::{self, Words};
use crate::wire;

/// A command's process with its task.
struct Cell<'a> {
    shell: &'a Shell<'a>,
    jail: Jail,
    seat: usize,
    payload: OwnedFd,
    stdin: OwnedFd,
    stdout: OwnedFd,
    stderr: OwnedFd,
    result: Option<OwnedFd>,
}

/// Runs as a command's process until `execve`; never returns. A read from `turn` blocks it, fully confined,
/// until PID 1 has dropped its privileges and the commands before it have succeeded.
pub(super) fn live(shell: &Shell<'_>, inbox: &OwnedFd, seat: usize, turn: &OwnedFd) -> ! {
    let failed = match prepare(shell, inbox, seat) {
        Ok(Some(cell)) => {
            if super::await_byte(turn).is_err() {
                sys::exit_now(1);
            }
            execute(&cell)
        }
        Ok(None) => sys::exit_now(0),
        Err(failed) => failed,
    };
    tell(&shell.report, &Told::Failed(failed));
    sys::exit_now(1)
}

fn prepare<'a>(shell: &'a Shell<'a>, inbox: &OwnedFd, seat: usize) -> Result<Option<Cell<'a>>, StepFailed> {
    let Some((jail, fds)) = super::await_order(&shell.seats[seat])? else { return Ok(None) };
    let cell = step(Step::Order, "", || take(shell, seat, jail, fds))?;
    let payload = step(Step::Inbox, "", || Payload::map(cell.payload.as_raw_fd()).map_err(errno))?;
    if seat == 0 {
        mounts::size_disk(&cell.jail)?;
        step(Step::Inbox, "", || {
            payload.unpack(Place::Inbox as u32, inbox.as_raw_fd()).map_err(|file| errno(file.why))
        })?;
    }
    confine(&cell, payload)?;
    Ok(Some(cell))
}

/// Takes the descriptors in the order in which the provider sends them.
fn take<'a>(shell: &'a Shell<'a>, seat: usize, jail: Jail, fds: Vec<OwnedFd>) -> Result<Cell<'a>, Errno> {
    let mut fds = fds.into_iter();
    let mut next = || fds.next().ok_or(Errno::BADF);
    let [payload, stdin, stdout, stderr] = [next()?, next()?, next()?, next()?];
    let result = jail.result_pipe.then(next).transpose()?;
    Ok(Cell { shell, jail, seat, payload, stdin, stdout, stderr, result })
}

fn confine(cell: &Cell<'_>, payload: Payload<'_>) -> Result<(), StepFailed> {
    step(Step::Stdio, "", || stdio(cell))?;
    give_up(cell.shell, &cell.jail, processes_of_ours(cell), || {
        if cell.seat == 0 { files(payload) } else { Ok(()) }
    })?;
    // Last, because the filter would forbid the steps above.
    step(Step::Seccomp, "", || be_heard(cell.shell, &cell.shell.seats[cell.seat]))
}

/// Installs the filter, and sends its notification listener to the launcher. If a listener outside is
/// attached to this process already, denials are not reported.
pub(super) fn be_heard(shell: &Shell<'_>, line: &OwnedFd) -> Result<(), Errno> {
    if fault::without(Layer::Seccomp) {
        return Ok(());
    }
    let installed = shell.heard.install_to_be_heard();
    match installed.map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::INVAL)) {
        Ok(listener) => wire::send_bytes(line.as_fd(), b"1", &[listener.as_fd()]),
        Err(Errno::BUSY) => install(shell.filter),
        Err(errno) => Err(errno),
    }
}

/// Installs a filter without a listener.
pub(super) fn install(filter: &Filter) -> Result<(), Errno> {
    filter.install().map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::INVAL))
}

/// Drops all privileges of a process of the sandbox user, except for installing the filter. `as_user` runs as
/// that user.
pub(super) fn give_up(
    shell: &Shell<'_>,
    jail: &Jail,
    processes_of_ours: u64,
    as_user: impl FnOnce() -> Result<(), StepFailed>,
) -> Result<(), StepFailed> {
    let limits = super::resource_limits(&jail.limits, processes_of_ours, shell.hold_each_process);
    step(Step::Rlimits, "", || rights::limit(&limits))?;
    step(Step::Ids, "", || rights::become_user(INNER_UID, INNER_UID))?;
    // ── from here on: unprivileged ──
    as_user()?;
    step(Step::Workdir, &jail.workdir, || rustix::process::chdir(jail.workdir.as_str()))?;
    step(Step::Capabilities, "", rights::drop_capabilities)?;
    step(Step::NoNewPrivs, "", rights::forbid_new_privileges)?;
    if shell.landlock && !fault::without(Layer::Landlock) {
        step(Step::Landlock, "", || landlock::apply(jail))?;
    }
    Ok(())
}

/// Starts a session, and sets up descriptors 0 to 2 (and 3 for a result); all others are closed on `execve`.
fn stdio(cell: &Cell<'_>) -> Result<(), Errno> {
    rustix::process::setsid()?;
    sys::default_pipe_signal();
    rustix::process::umask(Mode::from_raw_mode(0o022));
    place_at(&cell.stdin, 0)?;
    place_at(&cell.stdout, 1)?;
    place_at(&cell.stderr, 2)?;
    let mut first_closed = 3;
    if let Some(result) = &cell.result {
        place_at(result, 3)?;
        first_closed = 4;
    }
    close_on_exec_from(first_closed)
}

pub(super) fn close_on_exec_from(first: u32) -> Result<(), Errno> {
    // SAFETY: only marks descriptors; none is closed before `execve`.
    let result = unsafe { libc::syscall(libc::SYS_close_range, first, u32::MAX, libc::CLOSE_RANGE_CLOEXEC) };
    if result == 0 { Ok(()) } else { Err(Errno::BADF) }
}

/// Returns how many additional processes the kernel counts for this user: waiting commands, and our own.
fn processes_of_ours(cell: &Cell<'_>) -> u64 {
    let waiting = cell.jail.commands.len() as u64 - 1;
    waiting + super::processes_of_ours(cell.shell.own_init_uid, cell.shell.group_counts_processes)
}

fn files(payload: Payload<'_>) -> Result<(), StepFailed> {
    let folder = step(Step::Files, "", || {
        rustix::fs::open(WORKSPACE, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
    })?;
    let failed = |file: Unwritten<'_>| {
        StepFailed::new(Step::Files, String::from_utf8_lossy(file.path), errno(file.why))
    };
    payload.unpack(Place::Workspace as u32, folder.as_raw_fd()).map_err(failed)
}

/// Looks up the program like a shell and executes it. Returns only the reason why that failed.
fn execute(cell: &Cell<'_>) -> StepFailed {
    let command = cell.jail.commands.get(cell.seat).map_or(&[][..], Vec::as_slice);
    let name = command.first().map_or("", String::as_str);
    let failed = |errno| StepFailed::new(Step::Exec, name, errno);
    if let Err(errno) = fault::inject(Step::Exec) {
        return failed(errno);
    }
    let (arguments, env) = match (Words::of(command), Words::of(&cell.jail.env)) {
        (Ok(arguments), Ok(env)) => (arguments, env),
        (Err(errno), _) | (_, Err(errno)) => return failed(errno),
    };
    let (argv, envp) = (arguments.pointers(), env.pointers());
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
