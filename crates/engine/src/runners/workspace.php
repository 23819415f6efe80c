<?php
// Lets PHP run a source file that lies elsewhere as if it were in the workspace: `__DIR__` and `__FILE__` are those of
// a file there. PHP runs that file after this one, without a frame of this one, because the command names it as
// `auto_append_file`. It reads the one file through this class, and all others as usual.
class BelljarSource
{
    public static $source;
    public $context;
    private $file;
    private $start = '';

    public function stream_open($path, $mode, $options, &$opened)
    {
        stream_wrapper_restore('file');
        $this->file = fopen(self::$source, 'rb');
        if ($this->file && strncmp(fgets($this->file), '#!', 2) === 0) {
            // PHP skips this line in its first file only. The other lines keep their numbers.
            $this->start = preg_replace('/^<\?php/', "<?php\n", (string) fgets($this->file));
        } elseif ($this->file) {
            rewind($this->file);
        }
        return $this->file !== false;
    }

    public function stream_read($count)
    {
        $start = $this->start;
        $this->start = '';
        return $start !== '' ? $start : fread($this->file, $count);
    }

    public function stream_eof()
    {
        return feof($this->file);
    }

    public function stream_stat()
    {
        // The size is not known.
        return [];
    }

    public function stream_set_option($option, $first, $second)
    {
        return false;
    }

    public function stream_close()
    {
        fclose($this->file);
    }
}

BelljarSource::$source = $argv[1];
array_shift($argv);
$argc--;
$argv[0] = '/workspace/' . basename($argv[0]);
$_SERVER['argv'] = $argv;
$_SERVER['argc'] = $argc;
foreach (['PHP_SELF', 'SCRIPT_NAME', 'SCRIPT_FILENAME', 'PATH_TRANSLATED'] as $name) {
    $_SERVER[$name] = $argv[0];
}
unset($name);
stream_wrapper_unregister('file');
stream_wrapper_register('file', 'BelljarSource');
