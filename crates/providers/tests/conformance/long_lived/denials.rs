//! Denials are attributed to the command that caused them, and a flood of them does not affect other
//! sandboxes.

use belljar_engine::sandbox_handle::{AttachOptions, CommandEnding, StartCommand};
use serde_json::json;

use super::{Case, OpenSandbox, cases, collect, text, until};
use crate::fixture::{Fixture, Verdict, check};

pub(super) fn all() -> Vec<(&'static str, Case)> {
    cases![denied_calls_are_attributed_to_their_command, a_flood_of_denied_calls_does_not_slow_others]
}

/// Returns Python code that makes a call this often and fails unless it is denied with EPERM each time.
fn denied_call_script(call: &str, times: u32) -> String {
    format!(
        "import ctypes; libc = ctypes.CDLL(None, use_errno=True)\n\
         for _ in range({times}):\n    assert libc.{call} == -1 and ctypes.get_errno() == 1, ctypes.get_errno()\n"
    )
}

impl OpenSandbox {
    /// Runs a line and returns the messages of its command's denials.
    async fn command_denials(&self, line: &str) -> Result<Vec<String>, String> {
        let attach = AttachOptions { from: 0, hold: true };
        let started = self.handle.commands().start_attached(StartCommand::shell(line), attach).await;
        let (process, output) = started.map_err(text)?;
        let ran = collect(output).await.map_err(text)?;
        check!(ran.ending == Some(CommandEnding::Exited(0)), (line, ran));
        let all = self.handle.commands().list().await.map_err(text)?;
        let info = all.into_iter().find(|info| info.id == process).ok_or("the command is not listed")?;
        let findings = self.handle.commands().denial_findings(&info).await.map_err(text)?;
        Ok(findings.into_iter().map(|finding| finding.message).collect())
    }

    async fn sandbox_denials(&self) -> Result<Vec<String>, String> {
        let findings = self.handle.denial_findings().await.map_err(text)?;
        Ok(findings.into_iter().map(|finding| finding.message).collect())
    }
}

fn has(told: &[String], calls: &[&str]) -> bool {
    told.len() == calls.len() && calls.iter().all(|call| told.iter().any(|message| message.contains(call)))
}

async fn denied_calls_are_attributed_to_their_command(fixture: Fixture) -> Verdict {
    let open = fixture.open(json!({})).await?;
    check!(open.command_denials("echo nothing").await?.is_empty(), "no call was denied");
    check!(open.sandbox_denials().await?.is_empty(), "no call of the guest was denied");
    open.write_file("unshare.py", denied_call_script("unshare(0x10000000)", 3).as_bytes()).await?;
    open.write_file("ptrace.py", denied_call_script("ptrace(0, 0, 0, 0)", 1).as_bytes()).await?;
    // Concurrently, in child processes and in new sessions.
    let (one, other) = tokio::join!(
        open.command_denials("sh -c 'python3 unshare.py; true' && sleep 0.3"),
        open.command_denials("sleep 0.1; setsid -w python3 ptrace.py | cat && sleep 0.3"),
    );
    let (one, other) = (one?, other?);
    check!(has(&one, &["unshare"]) && one[0].ends_with("(3 times)"), one);
    check!(has(&other, &["ptrace"]), other);
    // A background process in the command's session still belongs to the command.
    let left = open
        .command_denials(
            "python3 ptrace.py; (sh -c 'python3 unshare.py; touch left; sleep 0.2' >/dev/null 2>&1 &)\n\
             while ! test -e left; do sleep 0.05; done",
        )
        .await?;
    check!(has(&left, &["ptrace", "unshare"]), left);
    // A daemon belongs to no command, but its denials appear for the sandbox.
    let daemon = "(setsid sh -c 'sleep 0.5; python3 ptrace.py; touch done' >/dev/null 2>&1 &)";
    check!(open.command_denials(daemon).await?.is_empty(), "a daemon");
    until("the daemon is done", async || {
        Ok(open.shell("test -e done").await?.ending == Some(CommandEnding::Exited(0)))
    })
    .await?;
    let all = open.sandbox_denials().await?;
    check!(has(&all, &["unshare", "ptrace"]), all);
    open.close().await
}

/// More denials than the listener handles at full speed. Each call still fails like the first.
async fn a_flood_of_denied_calls_does_not_slow_others(fixture: Fixture) -> Verdict {
    let (open, quiet) = (fixture.open(json!({})).await?, fixture.open(json!({})).await?);
    open.write_file("flood.py", denied_call_script("unshare(0x10000000)", 320).as_bytes()).await?;
    let flood = open.command_denials("python3 flood.py");
    let beside = async {
        let mut answered = 0;
        while answered < 20 {
            check!(quiet.command_denials("echo fine").await?.is_empty(), "denials of the other sandbox");
            answered += 1;
        }
        Ok::<_, String>(answered)
    };
    let (flood, answered) = tokio::join!(flood, beside);
    let flood = flood?;
    // Beyond its budget, the listener does not look up the process: such calls count for the sandbox only.
    let count = flood.first().and_then(|text| text.rsplit_once('(')?.1.strip_suffix(" times)")?.parse().ok());
    check!(has(&flood, &["unshare"]) && count.is_some_and(|count: u32| (100..=320).contains(&count)), flood);
    check!(answered? == 20, "the other sandbox answers");
    check!(quiet.sandbox_denials().await?.is_empty(), "the other sandbox has no denials");
    quiet.close().await?;
    open.close().await
}
