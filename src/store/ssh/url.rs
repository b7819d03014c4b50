//! Store URLs of ssh: `ssh://[USER@]HOST[:PORT]/PATH`.

/// A directory on a host that ssh(1) reaches.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Remote {
    /// `[USER@]HOST` as ssh(1) knows it.
    pub destination: String,
    /// Port; without it, that of the configuration of ssh(1).
    pub port: Option<u16>,
    pub path: String,
}

impl Remote {
    /// Parses the part after the scheme: `//[USER@]HOST[:PORT]/PATH`.
    pub(in crate::store) fn parse(rest: &[u8]) -> Result<Remote, &'static str> {
        let rest = std::str::from_utf8(rest).map_err(|_| "it is not UTF-8")?;
        let rest = rest.strip_prefix("//").ok_or("two slashes and a host come after the colon")?;
        let (server, path) = rest.split_once('/').filter(|(_, path)| !path.is_empty()).ok_or("its path is missing")?;
        let (user, server) = server.rsplit_once('@').map_or((None, server), |(user, server)| (Some(user), server));
        if user.is_some_and(|user| user.contains(':')) {
            return Err("a password does not belong there, where every user sees it; ssh(1) uses keys and agents");
        }
        let (host, port) = match server.rsplit_once(':') {
            Some((host, port)) if !port.contains(']') => {
                let port = port.parse::<u16>().ok().filter(|port| *port > 0).ok_or("the port is not a number")?;
                (host, Some(port))
            }
            _ => (server, None),
        };
        let host = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
        // ssh(1) would take a word with a dash for an option, and a shell in its configuration may see the others.
        let is_plain = |word: &str| {
            let is_safe = |byte: u8| byte.is_ascii_alphanumeric() || b"-._%:".contains(&byte);
            !word.is_empty() && !word.starts_with('-') && word.bytes().all(is_safe)
        };
        if !is_plain(host) || user.is_some_and(|user| !is_plain(user)) {
            return Err("the server is [USER@]HOST[:PORT], as for ssh(1)");
        }
        if path.bytes().any(|byte| byte.is_ascii_control()) {
            return Err("its path contains a control character");
        }
        let destination = user.map_or(host.to_string(), |user| format!("{user}@{host}"));
        let path = format!("/{}", path.strip_prefix("./").unwrap_or(path).trim_end_matches('/'));
        Ok(Remote { destination, port, path })
    }

    pub fn url(&self) -> String {
        let (user, host) = self.destination.rsplit_once('@').unwrap_or(("", &self.destination));
        let at = if user.is_empty() { "" } else { "@" };
        let host = if host.contains(':') { format!("[{host}]") } else { host.to_string() };
        let port = self.port.map_or(String::new(), |port| format!(":{port}"));
        format!("ssh://{user}{at}{host}{port}{}", self.path)
    }

    /// Returns the command for the shell of the host.
    pub(super) fn command(&self) -> String {
        format!("csalock serve --stdio 'dir:{}'", self.path.replace('\'', "'\\''"))
    }
}
