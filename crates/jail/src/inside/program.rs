//! The process of a command, from the fork to `execve`.

use std::ffi::CString;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use belljar_model::layer::Layer;
use belljar_zygote::payload::{Payload, UnpackError};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use super::{JailSetup, SetupReport, dup_to, landlock, mounts, privileges, send_report};
use crate::fault;
use crate::spec::{INNER_UID, Jail, PayloadTarget, WORKSPACE};
use crate::step::{Step, StepFailed, step};
use crate::sys::errno;
use crate::sys::{self, CStringArray};
use crate::wire;

/// A command's process with its task.
struct CommandProcess<'a> {
    setup: &'a JailSetup<'a>,
    jail: Jail,
    index: usize,
    payload: OwnedFd,
    stdin: OwnedFd,
    stdout: OwnedFd,
    stderr: OwnedFd,
    result: Option<OwnedFd>,
}

/// Runs as a command's process until `execve`; never returns. A read from `turn` blocks it, fully confined,
/// until PID 1 has dropped its privileges and the commands before it have succeeded.
pub(super) fn run_command_process(setup: &JailSetup<'_>, inbox: &OwnedFd, index: usize, turn: &OwnedFd) -> ! {
    let failed = match prepare(setup, inbox, index) {
        Ok(Some(command)) => {
            if super::await_byte(turn).is_err() {
                sys::exit_now(1);
            }
            execute(&command)
        }
        Ok(None) => sys::exit_now(0),
        Err(failed) => failed,
    };
    send_report(&setup.report, &SetupReport::Failed(failed));
    sys::exit_now(1)
}

fn prepare<'a>(
    setup: &'a JailSetup<'a>,
    inbox: &OwnedFd,
    index: usize,
) -> Result<Option<CommandProcess<'a>>, StepFailed> {
    let Some((jail, fds)) = super::await_task(&setup.command_sockets[index])? else { return Ok(None) };
    let command = step(Step::Task, "", || with_fds(setup, index, jail, fds))?;
    let payload = step(Step::Inbox, "", || Payload::map(command.payload.as_raw_fd()).map_err(errno))?;
    if index == 0 {
        mounts::resize_disk(&command.jail)?;
        step(Step::Inbox, "", || {
            payload.unpack(PayloadTarget::Inbox as u32, inbox.as_raw_fd()).map_err(|file| errno(file.errno))
        })?;
    }
    confine(&command, payload)?;
    Ok(Some(command))
}

/// Takes the descriptors in the order in which the provider sends them.
fn with_fds<'a>(
    setup: &'a JailSetup<'a>,
    index: usize,
    jail: Jail,
    fds: Vec<OwnedFd>,
) -> Result<CommandProcess<'a>, Errno> {
    let mut fds = fds.into_iter();
    let mut next = || fds.next().ok_or(Errno::BADF);
    let [payload, stdin, stdout, stderr] = [next()?, next()?, next()?, next()?];
    let result = jail.result_pipe.then(next).transpose()?;
    Ok(CommandProcess { setup, jail, index, payload, stdin, stdout, stderr, result })
}

fn confine(command: &CommandProcess<'_>, payload: Payload<'_>) -> Result<(), StepFailed> {
    step(Step::Stdio, "", || connect_stdio(command))?;
    drop_privileges(command.setup, &command.jail, processes_of_ours(command), || {
        if command.index == 0 { unpack_files(payload) } else { Ok(()) }
    })?;
    // Last, because the filter would forbid the steps above.
    step(Step::Seccomp, "", || {
        install_notifying_filter(command.setup, &command.setup.command_sockets[command.index])
    })
}

/// Installs the filter, and sends its notification listener to the launcher. If a listener outside is
/// attached to this process already, denials are not reported.
pub(super) fn install_notifying_filter(setup: &JailSetup<'_>, socket: &OwnedFd) -> Result<(), Errno> {
    if fault::is_left_out(Layer::Seccomp) {
        return Ok(());
    }
    match setup.program_filter.install_with_listener() {
        Ok(listener) => wire::send_bytes(socket.as_fd(), b"1", &[listener.as_fd()]),
        Err(Errno::BUSY) => setup.init_filter.install(),
        Err(errno) => Err(errno),
    }
}

/// Drops all privileges of a process of the sandbox user, except for installing the filter. `as_user` runs as
/// that user.
pub(super) fn drop_privileges(
    setup: &JailSetup<'_>,
    jail: &Jail,
    processes_of_ours: u64,
    as_user: impl FnOnce() -> Result<(), StepFailed>,
) -> Result<(), StepFailed> {
    let limits = super::resource_limits(&jail.limits, processes_of_ours, setup.limit_memory_per_process);
    step(Step::Rlimits, "", || privileges::set_rlimits(&limits))?;
    let uid = if setup.has_writable_root() { 0 } else { INNER_UID };
    step(Step::Ids, "", || privileges::become_user(uid, uid))?;
    // ── from here on: unprivileged ──
    as_user()?;
    step(Step::Workdir, &jail.workdir, || rustix::process::chdir(jail.workdir.as_str()))?;
    step(Step::Capabilities, "", || match setup.has_writable_root() {
        true => privileges::keep_root_capabilities(),
        false => privileges::drop_capabilities(),
    })?;
    step(Step::NoNewPrivs, "", privileges::set_no_new_privs)?;
    if setup.has_landlock && !fault::is_left_out(Layer::Landlock) {
        step(Step::Landlock, "", || landlock::apply(jail))?;
    }
    Ok(())
}

/// Starts a session, and sets up descriptors 0 to 2 (and 3 for a result); all others are closed on `execve`.
fn connect_stdio(command: &CommandProcess<'_>) -> Result<(), Errno> {
    rustix::process::setsid()?;
    sys::reset_sigpipe();
    rustix::process::umask(Mode::from_raw_mode(0o022));
    dup_to(&command.stdin, 0)?;
    dup_to(&command.stdout, 1)?;
    dup_to(&command.stderr, 2)?;
    let mut first_closed = 3;
    if let Some(result) = &command.result {
        dup_to(result, 3)?;
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
fn processes_of_ours(command: &CommandProcess<'_>) -> u64 {
    let waiting = command.jail.commands.len() as u64 - 1;
    waiting + super::own_process_count(command.setup.own_init_uid, command.setup.cgroup_limits_processes)
}

fn unpack_files(payload: Payload<'_>) -> Result<(), StepFailed> {
    let folder = step(Step::Files, "", || {
        rustix::fs::open(WORKSPACE, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
    })?;
    let failed = |file: UnpackError<'_>| {
        StepFailed::new(Step::Files, String::from_utf8_lossy(file.path), errno(file.errno))
    };
    payload.unpack(PayloadTarget::Workspace as u32, folder.as_raw_fd()).map_err(failed)
}

/// Looks up the program like a shell and executes it. Returns only the reason why that failed.
fn execute(process: &CommandProcess<'_>) -> StepFailed {
    let command = process.jail.commands.get(process.index).map_or(&[][..], Vec::as_slice);
    let name = command.first().map_or("", String::as_str);
    let failed = |errno| StepFailed::new(Step::Exec, name, errno);
    if let Err(errno) = fault::inject(Step::Exec) {
        return failed(errno);
    }
    let (arguments, env) = match (CStringArray::new(command), CStringArray::new(&process.jail.env)) {
        (Ok(arguments), Ok(env)) => (arguments, env),
        (Err(errno), _) | (_, Err(errno)) => return failed(errno),
    };
    let (argv, envp) = (arguments.pointers(), env.pointers());
    let path =
        process.jail.env.iter().find_map(|entry| entry.strip_prefix("PATH=")).unwrap_or("/usr/bin:/bin");
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
