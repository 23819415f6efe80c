//! Parses the standard error of a failed program: which kernel error it got, for which path or host.

/// Kernel errors that a sandbox may have caused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum KernelError {
    ReadOnly,
    Denied,
    NotPermitted,
    NotFound,
    NoSpace,
    FileTooLarge,
    TooManyOpenFiles,
    NoMemory,
    NoProcesses,
}

use KernelError::{
    Denied, FileTooLarge, NoMemory, NoProcesses, NoSpace, NotFound, NotPermitted, ReadOnly, TooManyOpenFiles,
};

/// Error texts of C libraries, Python and Node.js. The first one found in a line decides.
const ERROR_PHRASES: &[(&str, KernelError)] = &[
    ("read-only file system", ReadOnly),
    ("[errno 30]", ReadOnly),
    ("permission denied", Denied),
    ("[errno 13]", Denied),
    ("operation not permitted", NotPermitted),
    ("[errno 1]", NotPermitted),
    ("no space left on device", NoSpace),
    ("[errno 28]", NoSpace),
    ("file too large", FileTooLarge),
    ("[errno 27]", FileTooLarge),
    ("too many open files", TooManyOpenFiles),
    ("[errno 24]", TooManyOpenFiles),
    ("memoryerror", NoMemory),
    ("cannot allocate memory", NoMemory),
    ("std::bad_alloc", NoMemory),
    ("can't start new thread", NoProcesses),
    ("fork: resource temporarily unavailable", NoProcesses),
    ("fork: retry: resource temporarily unavailable", NoProcesses),
    ("spawn", NoProcesses),
    ("no such file or directory", NotFound),
    ("[errno 2]", NotFound),
];

/// A kernel error named in a line, and the absolute path it is about.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct ErrorClue<'a> {
    pub(super) error: KernelError,
    pub(super) path: Option<&'a str>,
}

/// Parses an error line.
pub(super) fn parse(line: &str) -> Option<ErrorClue<'_>> {
    let lower = line.to_ascii_lowercase();
    let (at, (words, trouble)) = ERROR_PHRASES
        .iter()
        .find_map(|known| Some((lower.find(known.0)?, *known)))
        .filter(|(_, (words, _))| {
            // Node.js writes `spawn ls EAGAIN`; `spawn` alone means nothing.
            *words != "spawn" || lower.contains(" eagain")
        })?;
    let (before, behind) = (&line[..at], &line[at + words.len()..]);
    // The path follows the error text; if it precedes it, it is the last one named, after the program itself.
    let path = absolute_paths(behind).next().or_else(|| absolute_paths(before).last());
    Some(ErrorClue { error: trouble, path })
}

/// Returns the module or package that an import did not find: of Python, or of Node.js by a bare name.
pub(super) fn missing_module(line: &str) -> Option<&str> {
    const MARKS: [&str; 3] =
        ["ModuleNotFoundError: No module named '", "Cannot find module '", "Cannot find package '"];
    let rest = MARKS.iter().find_map(|mark| line.split_once(mark)).map(|(_, rest)| rest)?;
    let (name, _) = rest.split_once('\'')?;
    let is_path = name.starts_with(['.', '/']) || name.contains(':');
    (!name.is_empty() && !is_path).then_some(name)
}

/// Returns the absolute paths in a line: quoted, or ending at a space or colon.
fn absolute_paths(text: &str) -> impl Iterator<Item = &str> {
    let starts = text.match_indices('/').filter_map(|(at, _)| {
        let opening = text[..at].chars().next_back();
        match opening {
            None | Some(' ' | '(') => {
                let end = text[at..].find([' ', ':', ',', ')']).unwrap_or(text.len() - at);
                Some(&text[at..at + end])
            }
            Some(quote @ ('\'' | '"' | '`' | '‘')) => {
                let closing = if quote == '‘' {
                    '’'
                } else if quote == '`' {
                    '\''
                } else {
                    quote
                };
                let end = text[at..].find(closing)?;
                Some(&text[at..at + end])
            }
            Some(_) => None,
        }
    });
    starts.filter(|path| path.len() > 1)
}

/// Texts of errors about hosts that could not be reached.
const UNREACHABLE_PHRASES: &[&str] = &[
    "Network is unreachable",
    "network is unreachable",
    "ENETUNREACH",
    "Temporary failure in name resolution",
    "Name or service not known",
    "EAI_AGAIN",
    "ENOTFOUND",
    "Could not resolve host",
    "unable to resolve host",
    "Failed to resolve",
    "UnknownHostException",
    "no such host",
];

/// Texts of errors about hosts to which there is no route.
const NO_ROUTE_PHRASES: &[&str] =
    &["network is unreachable", "enetunreach", "no route to host", "ehostunreach"];

/// Texts that precede a host name.
const HOST_PREFIXES: &[&str] = &[
    "Cannot connect to host ",
    "connection to server at ",
    "Could not resolve host: ",
    "unable to resolve host address ",
    "Failed to resolve ",
    "host=",
    "EAI_AGAIN ",
    "ENOTFOUND ",
    "ENETUNREACH ",
    "UnknownHostException: ",
    "dial tcp: lookup ",
    "dial tcp ",
];

/// Returns `Some` if a line says that a host could not be reached, with the host if it is named.
pub(super) fn unreachable_host(line: &str) -> Option<Option<String>> {
    UNREACHABLE_PHRASES.iter().any(|words| line.contains(words)).then(|| find_host(line))
}

/// Returns `Some` if a line says that there was no route to a host, with the host if it is named.
pub(super) fn host_without_route(line: &str) -> Option<Option<String>> {
    let lower = line.to_ascii_lowercase();
    NO_ROUTE_PHRASES.iter().any(|words| lower.contains(words)).then(|| find_host(line))
}

fn find_host(line: &str) -> Option<String> {
    HOST_PREFIXES.iter().find_map(|mark| {
        let (_, rest) = line.split_once(mark)?;
        let rest = rest.trim_start_matches(['\'', '"', '‘']);
        let end = rest.find(|c: char| !(c.is_ascii_alphanumeric() || ".-:[]".contains(c)));
        let host = rest[..end.unwrap_or(rest.len())].trim_end_matches([':', '.']);
        let (_, behind) = rest.split_at(end.unwrap_or(rest.len()));
        let port = behind.split_once("port=").map(|(_, port)| port);
        let port = port.map(|port| port.split(|c: char| !c.is_ascii_digit()).next().unwrap_or_default());
        let good = host.contains('.') && !host.starts_with("127.") && host.len() <= 253;
        good.then(|| match port {
            Some(port) if !port.is_empty() && port.len() <= 5 => format!("{host}:{port}"),
            _ => host.to_owned(),
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn says(line: &str, error: KernelError, path: Option<&str>) {
        assert_eq!(parse(line), Some(ErrorClue { error, path }), "{line}");
    }

    #[test]
    fn errors_of_many_languages_are_parsed() {
        says("OSError: [Errno 30] Read-only file system: '/etc/x'", ReadOnly, Some("/etc/x"));
        says("PermissionError: [Errno 13] Permission denied: '/etc/x y'", Denied, Some("/etc/x y"));
        says("PermissionError: [Errno 13] Permission denied: '/a' -> '/b'", Denied, Some("/a"));
        says("Error: EROFS: read-only file system, open '/etc/x'", ReadOnly, Some("/etc/x"));
        says("/workspace/main.sh: line 1: /etc/x: Read-only file system", ReadOnly, Some("/etc/x"));
        says("touch: cannot touch '/etc/x': Permission denied", Denied, Some("/etc/x"));
        says("mkdir: cannot create directory ‘/etc/x’: Permission denied", Denied, Some("/etc/x"));
        says("open /etc/x: read-only file system", ReadOnly, Some("/etc/x"));
        says("Read-only file system @ rb_sysopen - /etc/x (Errno::EROFS)", ReadOnly, Some("/etc/x"));
        says("OSError: [Errno 28] No space left on device", NoSpace, None);
        says("PermissionError: [Errno 1] Operation not permitted", NotPermitted, None);
        says("RuntimeError: can't start new thread", NoProcesses, None);
        says("Error: spawn ls EAGAIN", NoProcesses, None);
        says("FileNotFoundError: [Errno 2] No such file or directory: 'x.csv'", NotFound, None);
    }

    #[test]
    fn other_lines_give_no_clue() {
        for line in
            ["NameError: name 'x' is not defined", "Error: spawn ls ENOENT", "", "/etc/x", "é: [errno"]
        {
            assert_eq!(parse(line), None, "{line}");
        }
    }

    #[test]
    fn unreachable_hosts_are_found() {
        let cases = [
            ("OSError: [Errno 101] Network is unreachable", None),
            ("httpx.ConnectError: [Errno -3] Temporary failure in name resolution", None),
            ("Error: getaddrinfo EAI_AGAIN registry.npmjs.org", Some("registry.npmjs.org")),
            (
                "npm error request to https://a.org/x failed, reason: getaddrinfo ENOTFOUND a.org",
                Some("a.org"),
            ),
            ("Error: connect ENETUNREACH 1.1.1.1:443 - Local (0.0.0.0:0)", Some("1.1.1.1:443")),
            ("curl: (6) Could not resolve host: example.com", Some("example.com")),
            ("wget: unable to resolve host address ‘example.com’", Some("example.com")),
            (
                "requests.exceptions.ConnectionError: HTTPSConnectionPool(host='a.org', port=443): Max retries \
                 exceeded with url: / (Caused by NameResolutionError(\"Failed to resolve 'a.org' ([Errno -3])\"))",
                Some("a.org"),
            ),
            ("dial tcp: lookup a.org: Temporary failure in name resolution", Some("a.org")),
            ("dial tcp 1.1.1.1:443: connect: network is unreachable", Some("1.1.1.1:443")),
            ("java.net.UnknownHostException: a.org", Some("a.org")),
        ];
        for (line, host) in cases {
            assert_eq!(unreachable_host(line), Some(host.map(str::to_owned)), "{line}");
        }
        assert_eq!(unreachable_host("ConnectionRefusedError: [Errno 111] Connection refused"), None);
    }

    #[test]
    fn hosts_without_a_route_are_found() {
        let cases = [
            ("OSError: [Errno 101] Network is unreachable", None),
            ("Error: connect ENETUNREACH 1.1.1.1:443 - Local (0.0.0.0:0)", Some("1.1.1.1:443")),
            (
                "aiohttp.client_exceptions.ClientConnectorError: Cannot connect to host a.org:443 ssl:default [Network \
                 is unreachable]",
                Some("a.org:443"),
            ),
            (
                "psycopg2.OperationalError: connection to server at \"db.a.org\" (192.0.2.1), port 5432 failed: Network \
                 is unreachable",
                Some("db.a.org"),
            ),
        ];
        for (line, host) in cases {
            assert_eq!(host_without_route(line), Some(host.map(str::to_owned)), "{line}");
        }
        assert_eq!(host_without_route("curl: (6) Could not resolve host: a.org"), None);
    }
}
