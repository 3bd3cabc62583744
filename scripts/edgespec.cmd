@echo off
rem edgespec from a checkout: installs itself into .venv on the first call, then runs at once.
setlocal
for %%I in ("%~dp0..") do set "ROOT=%%~fI"
call "%ROOT%\scripts\venv.cmd" || exit /b 1
"%ROOT%\.venv\Scripts\edgespec.exe" %*
exit /b %ERRORLEVEL%
