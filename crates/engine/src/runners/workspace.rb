# Runs a source file that lies elsewhere as if it were in the workspace: `require_relative`, `__dir__` and `__FILE__`
# are those of a file there. `DATA` has what follows `__END__`.
->(source) {
  path = "/workspace/#{File.basename(source)}"
  text = File.read(source, encoding: "UTF-8")
  code, data = text.split(/^__END__\r?\n/, 2)
  if data
    file = File.open(source, encoding: "UTF-8")
    file.seek(text.bytesize - data.bytesize)
    Object.const_set(:DATA, file)
  end
  $0 = path
  begin
    TOPLEVEL_BINDING.eval(code, path)
  rescue Exception => error
    # The frames of this file are below those of the program. A syntax error has no others.
    frames = error.backtrace.to_a.reject { |frame| frame.start_with?("#{__FILE__}:") }
    error.set_backtrace(frames.empty? ? [path] : frames)
    raise error
  end
}.call(ARGV.shift)
