//! Request defaults: values for the fields that a request of a batch leaves out.

use crate::request::{Dependencies, FileSpec, HostPaths, Request};
use crate::{Engine, Error};

/// Defaults for every request of a batch or a tool call.
#[derive(Debug, Clone, Default)]
pub struct RequestDefaults {
    /// Default fields. Its code applies to requests that have no program of their own.
    pub request: Request,
    /// Host paths, which no request can name.
    pub paths: HostPaths,
}

impl RequestDefaults {
    /// Fills in the fields that a request leaves out. Environment, files and required layers are merged; the
    /// request's own entry wins over a default of the same name.
    pub fn complete(&self, entry: Request) -> (Request, HostPaths) {
        let base = &self.request;
        let mut paths = self.paths.clone();
        if entry.image.is_some() {
            paths.image = None;
        }
        let (code, code_base64, command) = if has_program(&entry) {
            // The name belongs to the default code.
            paths.source_name = None;
            (entry.code, entry.code_base64, entry.command)
        } else {
            (base.code.clone(), base.code_base64.clone(), base.command.clone())
        };
        let mut env = base.env.clone();
        env.extend(entry.env);
        let request = Request {
            language: entry.language.or_else(|| base.language.clone().filter(|_| command.is_none())),
            code,
            code_base64,
            command,
            workdir: entry.workdir.or_else(|| base.workdir.clone()),
            arguments: entry.arguments.or_else(|| base.arguments.clone()),
            env,
            files: files(entry.files, &base.files),
            dependencies: dependencies(entry.dependencies, &base.dependencies),
            limits: entry.limits.or(&base.limits),
            network: entry.network.or_else(|| base.network.clone()),
            gpus: entry.gpus.or(base.gpus),
            profile: entry.profile.or_else(|| base.profile.clone()),
            policy: entry.policy.or_else(|| base.policy.clone()),
            provider: entry.provider.or_else(|| base.provider.clone()),
            image: entry.image.or_else(|| base.image.clone()),
            require: [base.require.as_slice(), entry.require.as_slice()].concat(),
            stdin: entry.stdin,
            stdin_base64: entry.stdin_base64,
            metadata: entry.metadata,
            inputs: entry.inputs,
            jobs: entry.jobs,
            wait: entry.wait,
        };
        (request, paths)
    }

    /// Checks the defaults themselves, so that a mistake is reported once and not for every request.
    ///
    /// # Errors
    /// Names the invalid field.
    pub fn check(&self, engine: &Engine) -> Result<(), Error> {
        let mut request = self.request.clone();
        if !has_program(&request) {
            match request.language {
                Some(_) => request.code = Some("placeholder".to_owned()),
                None => request.command = Some(vec!["placeholder".to_owned()]),
            }
        }
        engine.admit(request, self.paths.clone()).map(drop)
    }
}

fn has_program(request: &Request) -> bool {
    request.code.is_some() || request.code_base64.is_some() || request.command.is_some()
}

fn files(entry: Vec<FileSpec>, base: &[FileSpec]) -> Vec<FileSpec> {
    let mut files: Vec<_> =
        base.iter().filter(|file| entry.iter().all(|named| named.path != file.path)).cloned().collect();
    files.extend(entry);
    files
}

fn dependencies(entry: Dependencies, base: &Dependencies) -> Dependencies {
    let packages = if entry.packages.is_empty() { base.packages.clone() } else { entry.packages };
    Dependencies { detect: entry.detect.or(base.detect), packages }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(json: &str) -> Request {
        crate::request::parse(json.as_bytes()).unwrap()
    }

    fn defaults(json: &str) -> RequestDefaults {
        let paths = HostPaths {
            source_name: Some("job.py".to_owned()),
            image: Some("/srv/root".into()),
            ..HostPaths::default()
        };
        RequestDefaults { request: request(json), paths }
    }

    #[test]
    fn default_code_applies_to_requests_without_a_program() {
        let defaults = defaults(r#"{"language": "python", "code": "common"}"#);
        let (taken, paths) = defaults.complete(request(r#"{"arguments": {"n": 1}}"#));
        assert_eq!((taken.language.as_deref(), taken.code.as_deref()), (Some("python"), Some("common")));
        assert_eq!((taken.arguments.unwrap().len(), paths.source_name.as_deref()), (1, Some("job.py")));

        let (entry, paths) = defaults.complete(request(r#"{"code_base64": "MQ=="}"#));
        assert_eq!((entry.code, entry.code_base64.as_deref()), (None, Some("MQ==")));
        assert_eq!((entry.language.as_deref(), paths.source_name), (Some("python"), None));

        let (program, _) = defaults.complete(request(r#"{"command": ["ls"]}"#));
        assert_eq!((program.language, program.code), (None, None));
        assert_eq!(program.command, Some(vec!["ls".to_owned()]));
    }

    #[test]
    fn requests_override_defaults_and_collections_merge() {
        let defaults = defaults(
            r#"{"env": {"A": "1", "B": "1"}, "limits": {"timeout_ms": 1, "cpus": 2.0}, "require": ["seccomp"],
                "files": [{"path": "a", "content": "base"}, {"path": "b", "content": "base"}],
                "dependencies": {"detect": false}, "profile": "data", "network": {"mode": "full"}}"#,
        );
        let (request, paths) = defaults.complete(request(
            r#"{"command": ["ls"], "env": {"B": "2"}, "limits": {"cpus": 1.0}, "require": ["landlock"],
                "files": [{"path": "a", "content": "own"}], "network": {"mode": "none"}, "image": "host"}"#,
        ));
        let env: Vec<_> = request.env.iter().map(|(key, value)| format!("{key}{value}")).collect();
        assert_eq!(env, ["A1", "B2"]);
        assert_eq!((request.limits.timeout_ms, request.limits.cpus), (Some(1), Some(1.0)));
        assert_eq!(request.require, ["seccomp", "landlock"]);
        let files: Vec<_> =
            request.files.iter().map(|file| (&*file.path, file.content.as_deref().unwrap())).collect();
        assert_eq!(files, [("b", "base"), ("a", "own")]);
        assert_eq!((request.dependencies.detect, request.profile.as_deref()), (Some(false), Some("data")));
        assert_eq!((request.network.unwrap().mode.as_str(), paths.image), ("none", None));
    }
}
